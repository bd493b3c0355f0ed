"""Ctrl-C more than once: what the first one lets go of is let go of."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from gpudev.cli.commands.reservations.reserve import submit_request
from gpudev.cli.commands.signals import signals_as_interrupt, signals_ignored
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.sdk.http.endpoints import ApiCall
from gpudev.wire.reservations import SubmitRequest

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("first", _ENDINGS)
def test_whoever_is_impatient_interrupts_once(first: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in _ENDINGS]
    with signals_as_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(first)
        for number in _ENDINGS:
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in _ENDINGS] == before


def test_what_is_undisturbed_hears_nothing() -> None:
    with signals_ignored():
        for number in _ENDINGS:
            signal.raise_signal(number)


def test_a_reservation_that_was_asked_for_is_released_however_often_one_interrupts() -> None:
    """It has to be asked once more which one was made; another Ctrl-C comes in the middle of that."""
    asked: list[str] = []
    released: list[str] = []

    def fetch(call: ApiCall[Any]) -> Any:
        if call.path.endswith("/cancel"):
            released.append(call.path)
            return None
        asked.append(call.headers["Idempotency-Key"])
        if len(asked) == 1:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)
        return SimpleNamespace(value=SimpleNamespace(reservation_id="made"))

    session: Any = SimpleNamespace(api=SimpleNamespace(fetch=fetch))
    with pytest.raises(CliError) as ended:
        submit_request(session, SubmitRequest(gpu_count=1), count_given=True, may_ask=False, keeps_reservation=False)
    assert ended.value.exit_code is ExitCode.INTERRUPTED
    assert len(asked) == 2
    assert len(set(asked)) == 1
    assert released == ["/v1/jobs/made/cancel"]
