"""The file through which the control plane speaks to the people in a dev server: one JSON object per line."""

import json
import os
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Message:
    text: str
    valid_until: datetime | None = None
    """Until then it also greets whoever opens a new shell; None: for ever."""


def append_message(path: str, message: Message) -> None:
    """Add a message for all open terminals. One write, so that a reader never sees half a line of two writers."""
    valid_until = message.valid_until.isoformat() if message.valid_until else None
    line = json.dumps({"text": message.text, "valid_until": valid_until}) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
