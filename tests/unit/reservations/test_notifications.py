"""What people outside are told, and when it is tried again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev.domain.notifications import NotificationKind
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import ReservationEvent
from gpudev.planning.reservations.notifications import compose_notification, next_attempt_at
from support.factories import NOW, make_reservation

RUNNING = make_reservation(
    Status.ACTIVE,
    version=4,
    duration=timedelta(hours=4),
    name="mytrain",
    expires_at=NOW + timedelta(minutes=12),
    warned_minutes=15,
)
SHORT = RUNNING.reservation_id.hex[:8]


def event(kind: str, message: str = "") -> ReservationEvent:
    return ReservationEvent(7, RUNNING.reservation_id, NOW, kind, message, Status.ACTIVE, 4)


def test_who_is_ready_is_told_how_to_get_in() -> None:
    notice = compose_notification(event("active", "ready: ssh -p 1 dev@x"), RUNNING, NOW)
    assert notice is not None
    assert (notice.kind, notice.title) == (NotificationKind.READY, f"gpu-dev reservation {SHORT} (mytrain) is ready")
    assert notice.text == f"2 x h100 of ada, until 2026-03-02 09:12 UTC. To get in: gpu-dev connect {SHORT}"


def test_a_warning_says_what_is_left_when_it_is_sent_and_not_when_it_was_due() -> None:
    notice = compose_notification(event("warning", "ends in 15 minutes"), RUNNING, NOW + timedelta(minutes=8))
    assert notice is not None
    assert notice.title == f"gpu-dev reservation {SHORT} (mytrain) ends in 4 minutes"
    assert notice.text.endswith(f"ends at 09:12 UTC. To stay: gpu-dev extend {SHORT} --hours 1")


def test_a_warning_names_the_day_when_the_end_lies_beyond_midnight() -> None:
    soon = replace(RUNNING, expires_at=datetime(2026, 3, 3, 0, 10, tzinfo=UTC))
    notice = compose_notification(event("warning"), soon, datetime(2026, 3, 2, 23, 55, tzinfo=UTC))
    assert notice is not None
    assert "ends at 2026-03-03 00:10 UTC. " in notice.text


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("active", {"status": Status.CANCELLED}),
        ("warning", {"status": Status.EXPIRED}),
        ("warning", {"warned_minutes": None, "expires_at": NOW + timedelta(hours=2)}),
        ("warning", {"expires_at": NOW}),
        ("step", {}),
    ],
    ids=["ready, and over", "warned, and over", "extended since", "too late", "no news"],
)
def test_what_is_no_longer_true_is_not_sent(kind: str, changes: dict[str, Any]) -> None:
    assert compose_notification(event(kind), replace(RUNNING, **changes), NOW) is None


def test_a_failure_is_told_with_its_reason_and_without_log_lines() -> None:
    reason = "its first process was killed by signal 9; its last log lines:\nTOKEN=planted\x1b[2J"
    failed = replace(RUNNING, status=Status.FAILED, failure_reason=reason)
    notice = compose_notification(event("failed", reason), failed, NOW)
    assert notice is not None
    assert notice.text == "2 x h100 of ada. its first process was killed by signal 9; its last log lines:"


@pytest.mark.parametrize(
    ("kind", "message", "title", "text"),
    [
        ("expired", "its time is over", "is over", "Its time has passed."),
        (
            "expired",
            CommandExit(3, ("TOKEN=planted",)).message,
            "is over",
            "the command ended with exit code 3",
        ),
        ("cancelled", "cancelled by operator\n\x07", "was cancelled", "cancelled by operator"),
    ],
)
def test_an_end_is_told(kind: str, message: str, title: str, text: str) -> None:
    notice = compose_notification(
        event(kind, message), replace(RUNNING, status=Status(kind), gpu_count=0, name=None), NOW
    )
    assert notice is not None
    assert notice.title == f"gpu-dev reservation {SHORT} {title}"
    assert notice.text == f"h100 of ada. {text}"


def test_one_that_ended_with_the_command_of_its_client_is_not_called_cancelled() -> None:
    done = replace(RUNNING, status=Status.CANCELLED, exit_code=0, name=None)
    notice = compose_notification(event("cancelled", CommandExit(0).message), done, NOW)
    assert notice is not None
    assert notice.title == f"gpu-dev reservation {SHORT} is over"


def test_pauses_grow_to_an_hour_and_after_a_day_it_is_given_up() -> None:
    now, pauses = NOW, []
    for attempts in range(1, 100):
        again = next_attempt_at(attempts, NOW, now)
        if again is None:
            break
        pauses.append(again - now)
        now = again
    assert pauses[:3] == [timedelta(seconds=30), timedelta(minutes=1), timedelta(minutes=2)]
    assert max(pauses) == timedelta(hours=1)
    assert timedelta(hours=23) <= now - NOW <= timedelta(hours=24)
