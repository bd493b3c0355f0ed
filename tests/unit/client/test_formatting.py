"""A reservation in words."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudev.cli import formatting
from gpudev.sdk.http.event_stream import has_ended
from support.client.estimates import make_eta
from support.client.fake_api import active, make_job
from support.client.time_zones import zone

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def in_tokyo() -> Iterator[None]:
    """Nine hours ahead of UTC, all year."""
    with zone("JST-9"):
        yield


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (60, "1 min"),
        (44.9 * 60, "45 min"),
        (3599, "1 h"),
        (3600, "1 h"),
        (12000, "3 h 20 min"),
        (4 * 3600 - 1, "4 h"),
        (86400, "1 d"),
        (86400 + 7200, "1 d 2 h"),
    ],
)
def test_spans_are_as_exact_as_matters(seconds: float, text: str) -> None:
    assert formatting.format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0:00:00"), (5, "0:00:05"), (65, "0:01:05"), (3723, "1:02:03")])
def test_a_countdown_shows_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert formatting.format_clock(seconds) == text


def test_times_are_local_and_name_their_zone() -> None:
    assert formatting.local_time(NOW, NOW) == "18:00 JST"


def test_another_day_is_named_by_the_readers_calendar() -> None:
    assert formatting.local_time(NOW + timedelta(hours=6), NOW) == "2026-03-03 00:00 JST"
    assert formatting.local_time(NOW - timedelta(hours=10), NOW) == "2026-03-02 08:00 JST"[11:]


def test_the_last_day_there_is_can_be_told_too() -> None:
    """A file may bear it, and in Tokyo it is already the day after."""
    last = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert formatting.local_time(last, NOW) == "9999-12-31 23:59 UTC"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"status": "pending"}, "about to be planned"),
        ({"status": "queued"}, "start not known yet"),
        (
            {"status": "queued", "queue_position": 2, "estimated_start_at": NOW + timedelta(minutes=45)},
            "position 2, starts about 18:45 JST (in 45 min)",
        ),
        (
            {"status": "queued", "queue_position": 1, "estimated_start_at": NOW, "wait_reason": "all is full"},
            "position 1, starts any moment; all is full",
        ),
        ({"status": "queued", "queue_position": 1, "estimated_wait_minutes": 5}, "position 1, starts in about 5 min"),
        ({"status": "preparing"}, "being prepared"),
        ({"status": "preparing", "step": "starting the ssh server"}, "starting the ssh server"),
        ({"status": "active", "expires_at": NOW + timedelta(hours=2)}, "ends 20:00 JST (in 2 h)"),
        ({"status": "active", "expires_at": NOW - timedelta(seconds=1)}, "ended 17:59 JST"),
        ({"status": "failed", "failure_reason": "no disk"}, "no disk"),
        ({"status": "cancelled", "reservation_ended": NOW}, "ended 18:00 JST"),
        ({"status": "expired", "reservation_ended": NOW}, "ended 18:00 JST"),
    ],
)
def test_the_situation_says_what_matters_in_each_status(changes: dict[str, Any], text: str) -> None:
    assert formatting.describe_situation(make_job(**changes), NOW) == text


@pytest.mark.parametrize(
    ("minutes", "text"),
    [
        ((40, 20, 90, 125), "expected in about 40 min (20 min to 1 h 30 min), at the latest 20:05 JST"),
        ((40, 20, 55, 125), "expected in about 40 min (20 to 55 min), at the latest 20:05 JST"),
        ((90, 65, 150, 180), "expected in about 1 h 30 min (1 h 5 min to 2 h 30 min), at the latest 21:00 JST"),
        ((40, 0, 55, 60), "expected in about 40 min (up to 55 min), at the latest 19:00 JST"),
        ((0, -5, 20, 60), "expected any moment (up to 20 min), at the latest 19:00 JST"),
        ((40, 40, 40, 40), "expected in about 40 min, at the latest 18:40 JST"),
        ((None, None, None, 45), "at the latest 18:45 JST"),
        ((600, 300, 1500, 2000), "expected in about 10 h (5 h to 1 d 1 h), at the latest 2026-03-04 03:20 JST"),
        ((0, 0, 0, 0), "starts any moment"),
        ((0, 0, 0, -0.2), "starts any moment"),
        ((5, 2, 8, -10), "expected in about 5 min (2 to 8 min), at the latest 17:50 JST, which has passed"),
    ],
)
def test_both_starts_are_told_with_the_stated_error(minutes: tuple[float | None, ...], text: str) -> None:
    job = make_job(status="queued", queue_position=3, eta=make_eta(NOW, *minutes), wait_reason="all is full")
    assert formatting.describe_situation(job, NOW) == f"position 3, {text}; all is full"


def test_the_stated_start_goes_before_the_one_of_older_servers() -> None:
    job = make_job(status="queued", eta=make_eta(NOW, 40, 20, 90, 125), estimated_start_at=NOW + timedelta(hours=9))
    assert "starts about" not in formatting.describe_situation(job, NOW)


def test_hardware_is_named_by_count_and_type_and_a_cpu_type_by_itself() -> None:
    assert formatting.hardware(make_job(gpu_count=2, gpu_type="a100")) == "2 x a100"
    assert formatting.hardware(make_job(gpu_count=16, gpu_type="h100", node_count=2)) == "16 x h100 on 2 nodes"
    assert formatting.hardware(make_job(gpu_count=0, gpu_type="cpu-x86")) == "cpu-x86"


def test_an_unknown_status_counts_as_one_that_goes_on() -> None:
    job = make_job(status="hibernating")
    assert not has_ended(job)
    assert formatting.describe_situation(job, NOW) == ""
    assert formatting.colour_of(job.status) == "dim"


def test_every_ending_says_which_reservation_and_why() -> None:
    job = make_job(reservation_id="3f2a9c1e-0000-4000-8000-000000000000")
    failed = make_job(reservation_id=job.reservation_id, status="failed", failure_reason="no disk")
    assert formatting.describe_end(failed) == "reservation 3f2a9c1e failed: no disk"
    assert "was cancelled" in formatting.describe_end(make_job(status="cancelled"))
    assert "has expired" in formatting.describe_end(
        make_job(status="expired", **{k: v for k, v in active(job).items() if k != "status"})
    )
    for status, code in (("cancelled", 0), ("expired", 17)):
        done = make_job(reservation_id=job.reservation_id, status=status, exit_code=code)
        assert formatting.describe_end(done) == f"reservation 3f2a9c1e ended with its command (exit code {code})"
