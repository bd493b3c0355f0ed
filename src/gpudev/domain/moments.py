"""A moment in the words of a server, which knows no reader's zone: UTC, and with the day where it is not today's."""

from datetime import UTC, datetime


def format_utc_time(moment: datetime, now: datetime) -> str:
    """'14:05 UTC', or '2026-03-02 14:05 UTC'."""
    moment = moment.astimezone(UTC)
    day = "" if moment.date() == now.astimezone(UTC).date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M} UTC"
