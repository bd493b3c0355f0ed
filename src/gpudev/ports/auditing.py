"""The audit log: who did what, to what, from where, and what came of it. It is added to and never changed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

_KEY_PREFIX_LENGTH = 16
_KEY_PATTERN = re.compile(r"gpudevt?_[A-Za-z0-9_-]{10,}")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    action: str
    """An endpoint ("POST /v1/jobs/{job_id}/cancel") or an operator's command ("keys revoke")."""
    outcome: str
    """ "ok", or the code of the problem that was answered."""
    username: str | None = None
    key_prefix: str | None = None
    target: str | None = None
    address: str | None = None
    status: int | None = None
    request_id: str | None = None
    entry_id: int = 0
    """Given by the log; 0: not written yet."""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """None: any. Parts of `action` and `target` will do."""

    username: str | None = None
    action: str | None = None
    target: str | None = None
    address: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    after: int = 0
    """Only entries with a greater entry_id: for whoever follows."""
    limit: int = 100


class AuditLog(Protocol):
    async def append(self, entries: Sequence[AuditEntry]) -> None: ...

    async def find_entries(self, query: AuditQuery) -> list[AuditEntry]:
        """The newest `limit` of them, the oldest of these first."""
        ...


def sanitize_text(text: str, max_length: int = 200) -> str:
    """Text from outside as it may stand in a log: one line, nothing that moves a cursor or hides what follows, and no
    API key that somebody put in the wrong place."""
    kept = redact_keys(text[: 2 * max_length])
    shown = "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in kept[: max_length + 1]
    )
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def redact_keys(text: str) -> str:
    """Of every API key, and of every token for a session, only what lists of keys show of it, too."""
    return _KEY_PATTERN.sub(lambda found: found[0][:_KEY_PREFIX_LENGTH] + "…", text) if "gpudev" in text else text
