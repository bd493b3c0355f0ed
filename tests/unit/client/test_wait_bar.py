"""The bar between now, the expected start and the latest one."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpudev.cli.formatting import wait_bar
from gpudev.wire.reservations import EtaView

SINCE = datetime(2026, 3, 2, 12, tzinfo=UTC)


def eta(expected: int | None, latest: int) -> EtaView:
    return EtaView(
        expected=None if expected is None else SINCE + timedelta(minutes=expected),
        interval_from=None,
        interval_to=None,
        confidence=0.8,
        latest=SINCE + timedelta(minutes=latest),
        margin_seconds=0,
    )


def test_it_shows_what_was_waited_and_where_the_start_is_expected() -> None:
    now = SINCE + timedelta(minutes=20)
    assert wait_bar(SINCE, now, eta(50, 100), 22) == "[####------|---------]"
    assert wait_bar(SINCE, now, eta(None, 100), 22) == "[####----------------]"
    assert wait_bar(SINCE, now, eta(10, 100), 22) == "[####|---------------]", "expected earlier: any moment"
    assert wait_bar(SINCE, now, eta(50, 10), 22) == ""
    assert wait_bar(SINCE, now, eta(50, 100), 8) == ""


@given(st.integers(0, 500), st.none() | st.integers(0, 500), st.integers(0, 500), st.integers(0, 100))
def test_it_is_as_wide_as_asked_or_not_there(waited: int, expected: int | None, latest: int, width: int) -> None:
    bar = wait_bar(SINCE, SINCE + timedelta(minutes=waited), eta(expected, latest), width)
    assert len(bar) in (0, width)
