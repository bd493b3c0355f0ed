"""Which failed requests are made again: those that failed at once. One that hung would hang again."""

import pytest

from gpudev.sdk.errors import Unreachable
from gpudev.sdk.http.api_client import RETRY_PAUSES, send_with_retries
from gpudev.sdk.http.routines import Pause, Send
from gpudev.sdk.http.transport import HttpRequest, HttpResponse

READING = HttpRequest("GET", "/v1/jobs", repeatable=True)
AWAY = HttpResponse(503, b"", "application/problem+json")


def tries_of(outcome: HttpResponse | Unreachable, *, seconds: float, request: HttpRequest = READING) -> int:
    """How often it is sent when each try takes so long and ends like this."""
    clock = [0.0]
    routine, tries = send_with_retries(request, RETRY_PAUSES, lambda: clock[0]), 0
    step = next(routine)
    with pytest.raises((StopIteration, Unreachable)):
        while True:
            if isinstance(step, Pause):
                step = routine.send(None)
                continue
            assert isinstance(step, Send)
            tries += 1
            clock[0] += seconds
            step = routine.throw(outcome) if isinstance(outcome, Unreachable) else routine.send(outcome)
    return tries


@pytest.mark.parametrize("outcome", [AWAY, Unreachable("cut", sent=True)], ids=["an answer", "no answer"])
def test_a_quick_failure_is_tried_again_and_a_slow_one_is_told(outcome: HttpResponse | Unreachable) -> None:
    assert tries_of(outcome, seconds=0.1) == len(RETRY_PAUSES) + 1
    assert tries_of(outcome, seconds=2.0) == len(RETRY_PAUSES) + 1
    assert tries_of(outcome, seconds=4.0) == 1


def test_what_may_not_be_said_twice_is_said_once() -> None:
    assert tries_of(AWAY, seconds=0.1, request=READING._replace(repeatable=False)) == 1
