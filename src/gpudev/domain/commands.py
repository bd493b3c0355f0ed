"""What a queue message says: "look at this id", and why, for the log. The row is the truth."""

from enum import StrEnum

RESERVATION_QUEUE = "gpu_reservations"
DISK_QUEUE = "disk_operations"
MESSAGE_QUEUES = (RESERVATION_QUEUE, DISK_QUEUE)
MAX_MESSAGE_FAILURES = 3
PLANNING_LEASE = "planning"


def dead_letter_queue(queue: str) -> str:
    return f"{queue}_dlq"


class MessageCause(StrEnum):
    SUBMITTED = "submitted"
    CANCELLED = "cancelled"
    EXTENDED = "extended"
    RETRIED = "retried"
    PRIORITISED = "prioritised"
    RESENT = "resent"
