"""What is said of a reservation: its outcome in a word, and times that clients can show in another zone."""

from datetime import UTC, datetime, timedelta

import pytest

from gpudev.cli.formatting import in_own_zone
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import find_utc_times, format_utc_time
from support.factories import NOW, make_reservation


@pytest.mark.parametrize(("status", "exit_code", "reason", "outcome"), [
    (Status.ACTIVE, None, None, None),
    (Status.EXPIRED, 0, None, "done"),
    (Status.EXPIRED, 17, "the command ended with exit code 17", "exit 17"),
    (Status.EXPIRED, None, "the command was killed from outside", "killed"),
    (Status.EXPIRED, None, None, "expired"),
    (Status.CANCELLED, 0, None, "done"),
    (Status.CANCELLED, 3, None, "exit 3"),
    (Status.CANCELLED, None, None, "cancelled"),
    (Status.CANCELLED, None, "maximum wait of 5 hours reached", "cancelled"),
    (Status.FAILED, None, "no image", "failed"),
])  # fmt: skip
def test_the_outcome_is_what_the_command_said_else_the_status(
    status: Status, exit_code: int | None, reason: str | None, outcome: str | None
) -> None:
    assert make_reservation(status, exit_code=exit_code, failure_reason=reason).outcome == outcome


@pytest.mark.parametrize("exit_code", [0, 17, None])
def test_the_end_of_a_detached_command_keeps_its_exit_code(exit_code: int | None) -> None:
    change = changes.command_ended(make_reservation(Status.ACTIVE), CommandExit(exit_code))
    assert (change.to, change.fields["exit_code"]) == (Status.EXPIRED, exit_code)


@pytest.mark.parametrize("moment", [NOW, NOW + timedelta(hours=5), NOW + timedelta(days=3)])
def test_a_time_that_was_written_is_found_again(moment: datetime) -> None:
    written = format_utc_time(moment, NOW)
    assert find_utc_times(f"ends at {written}, or so", NOW) == {written: moment}


def test_times_without_a_date_need_to_know_when_they_were_written() -> None:
    text = "14:05 UTC, 2026-03-04 10:00:30 UTC and 99:99 UTC; not 10:00 CET"
    dated = {"2026-03-04 10:00:30 UTC": datetime(2026, 3, 4, 10, 0, 30, tzinfo=UTC)}
    assert find_utc_times(text) == dated
    assert find_utc_times(text, NOW) == {"14:05 UTC": NOW.replace(hour=14, minute=5)} | dated


def test_a_reader_in_utc_sees_every_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        text = "now by 2026-03-04 14:05 UTC instead of 14:05 UTC"
        later = NOW.replace(day=6)
        assert in_own_zone(text, find_utc_times(text, NOW), later) == (
            "now by 2026-03-04 14:05 UTC instead of 2026-03-02 14:05 UTC"
        )
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_text_is_shown_in_the_readers_own_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        text = "until 2026-03-02 14:05 UTC, not 14:05 UTC"
        assert in_own_zone(text, find_utc_times(text, NOW), NOW) == "until 15:05 CET, not 15:05 CET"
    finally:
        monkeypatch.undo()
        time.tzset()
