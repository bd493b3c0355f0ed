"""A clock that is moved by hand."""

from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self, at: datetime = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def move(self, *, to: datetime | None = None, **step: float) -> datetime:
        self._at = (to or self._at) + timedelta(**step)
        return self._at
