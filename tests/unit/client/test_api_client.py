"""The rules of speaking with the API, tried without a network: what is sent, how often, with which key."""

import json
import pickle
from typing import Any

import pytest

from gpudev import AsyncGpuDev, GpuDev
from gpudev.sdk.errors import (
    ClientError,
    CommandFailed,
    Forbidden,
    NotFound,
    Rejected,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UsageError,
)
from gpudev.sdk.http import endpoints
from gpudev.sdk.http.api_client import RETRY_PAUSES, ApiClient
from gpudev.sdk.http.routines import Pause, RunFunction, Send
from gpudev.sdk.http.transport import HttpResponse
from gpudev.wire import codec
from gpudev.wire.reservations import ExtendRequest, JobView, SubmitRequest
from support.client.fake_api import make_job
from support.client.sdk_driver import drive

CUT = Unreachable("cut", sent=True)
NEVER_SENT = Unreachable("refused", sent=False)
READ = endpoints.read_call(JobView, "/v1/jobs/3f2a")
EXTEND = endpoints.extend_job("3f2a", ExtendRequest(extension_hours=1.0))


def answer(status: int = 200, body: Any = None, **more: Any) -> HttpResponse:
    data = codec.encode_model(make_job()) if body is None else body
    kind = "application/json" if status < 400 else "application/problem+json"
    return HttpResponse(status, json.dumps(data).encode(), kind, **more)


def problem(status: int, code: str = "x") -> HttpResponse:
    return answer(status, {"detail": "no", "code": code, "status": status})


def core(**options: Any) -> ApiClient:
    return ApiClient("http://api", None, now=lambda: 0.0, **options)


def sends(effects: list[Any]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def test_what_may_be_said_twice_is_said_until_it_is_heard() -> None:
    reply, effects = drive(core().fetch(READ), [CUT, None, NEVER_SENT, None, answer(503), None, answer()])
    assert reply.value.status == "pending"
    assert [effect.seconds for effect in effects if isinstance(effect, Pause)] == list(RETRY_PAUSES)


@pytest.mark.parametrize("hours", [float("inf"), float("nan")])
def test_what_is_no_number_is_not_sent(hours: float) -> None:
    with pytest.raises(UsageError, match="infinite"):
        drive(core().fetch(endpoints.extend_job("3f2a", ExtendRequest(extension_hours=hours))), [])


def test_the_last_failure_is_the_one_that_is_told() -> None:
    with pytest.raises(Unreachable, match="the fourth"):
        drive(core().fetch(READ), [CUT, None, CUT, None, CUT, None, Unreachable("the fourth", sent=True)])


def test_what_may_not_be_said_twice_is_repeated_only_if_it_was_never_sent() -> None:
    _, effects = drive(core().fetch(EXTEND), [NEVER_SENT, None, answer()])
    assert len(sends(effects)) == 2
    with pytest.raises(Unreachable):
        drive(core().fetch(EXTEND), [CUT])


def test_a_certificate_that_is_not_trusted_is_not_tried_again() -> None:
    with pytest.raises(Unreachable):
        drive(core().fetch(READ), [Unreachable("no", sent=False, final=True)])


def test_a_server_that_asks_for_time_gets_it() -> None:
    _, effects = drive(core().fetch(READ), [answer(503, retry_after=1.5), None, answer()])
    assert effects[1] == Pause(1.5)


def test_every_submission_has_its_own_idempotency_key_and_keeps_it() -> None:
    first, second = endpoints.submit_job(SubmitRequest()), endpoints.submit_job(SubmitRequest())
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]
    _, effects = drive(core().fetch(first), [CUT, None, answer()])
    assert len({send.request.headers["Idempotency-Key"] for send in sends(effects)}) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthenticated),
        (403, Forbidden),
        (404, NotFound),
        (409, Rejected),
        (422, Rejected),
        (429, Rejected),
        (500, Unavailable),
    ],
)
def test_a_refusal_is_raised_by_its_meaning(status: int, kind: type[ClientError]) -> None:
    with pytest.raises(ClientError) as raised:
        drive(core().fetch(READ), [problem(status, "why")])
    assert type(raised.value) is kind
    assert (raised.value.message, raised.value.code) == ("no", "why")
    assert raised.value.problem["status"] == status


@pytest.mark.parametrize("body", [b"<html>", b'{"reservation_id": 7}', b"[]"])
def test_what_is_no_answer_of_this_api_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(Unreachable, match="does not respond like a gpu-dev API"):
        drive(core().fetch(READ), [HttpResponse(200, body, "application/json")])


class Keys:
    def __init__(self, *fresh: str | None) -> None:
        self.fresh = list(fresh)
        self.refused: list[str] = []

    def renew(self, refused: str) -> str | None:
        self.refused.append(refused)
        return self.fresh.pop(0)

    def core(self) -> ApiClient:
        return ApiClient("http://api", lambda: "old", self.renew, now=lambda: 0.0)


def run(asker: ApiClient, answers: list[Any]) -> tuple[Any, list[str]]:
    """With whatever it wants to be done on this machine done."""
    routine, keys, outcome = asker.fetch(READ), [], None
    waiting = list(answers)
    while True:
        try:
            effect = routine.send(outcome)
        except StopIteration as end:
            return end.value, keys
        if isinstance(effect, RunFunction):
            outcome = effect.function()
        else:
            assert isinstance(effect, Send)
            keys.append(effect.request.headers["Authorization"].removeprefix("Bearer "))
            outcome = waiting.pop(0)


def test_a_key_that_has_ended_is_replaced_and_the_question_asked_again() -> None:
    keys = Keys("new")
    asker = keys.core()
    _, used = run(asker, [problem(401), answer()])
    assert used == ["old", "new"]
    assert run(asker, [answer()])[1] == ["new"]


def test_a_fresh_key_that_is_refused_too_is_not_replaced_again() -> None:
    keys = Keys("new", "newer")
    asker = keys.core()
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            run(asker, [problem(401), problem(401)])
    assert keys.refused == ["old"]


def test_of_two_who_are_refused_at_once_one_gets_the_key_and_both_use_it() -> None:
    keys = Keys("new")
    asker = keys.core()
    first, second = asker.fetch(READ), asker.fetch(READ)
    for routine in (first, second):
        effect = routine.send(None)
        while isinstance(effect, RunFunction):
            effect = routine.send(effect.function())
    renewals = [routine.send(problem(401)) for routine in (first, second)]
    for routine, renewal in zip((first, second), renewals, strict=True):
        assert isinstance(renewal, RunFunction)
        again = routine.send(renewal.function())
        assert isinstance(again, Send)
        assert again.request.headers["Authorization"] == "Bearer new"
    assert keys.refused == ["old"]


@pytest.mark.parametrize(
    "error",
    [
        CUT,
        NotFound("no", "look there", code="c", problem={"status": 404}),
        CommandFailed("no", exit_code=3, stdout="a", stderr="b"),
    ],
)
def test_errors_travel_between_processes_and_take_other_advice(error: ClientError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.__dict__, str(again)) == (type(error), error.__dict__, str(error))
    advised = error.with_next_step("do this")
    assert (type(advised), advised.message, advised.next_step) == (type(error), error.message, "do this")
    assert error.next_step != "do this"


@pytest.mark.parametrize("kind", [GpuDev, AsyncGpuDev])
def test_a_client_says_that_it_cannot_travel_between_processes(kind: type[GpuDev] | type[AsyncGpuDev]) -> None:
    client = kind("http://127.0.0.1:1", api_key="gpudev_x")
    for one in (client, client.jobs):
        with pytest.raises(TypeError, match="create one in each process"):
            pickle.dumps(one)


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (404, "no endpoint '/v1/disks'; see /docs"),
        (405, "method PUT not allowed; see /docs"),
        (422, "max_wait_hours is not known here"),
    ],
)
def test_what_a_server_does_not_know_is_told_as_its_age(status: int, detail: str) -> None:
    with pytest.raises(ClientError, match="this server probably has an earlier version than this client"):
        drive(core().fetch(READ), [answer(status, {"detail": detail, "code": "x", "status": status})])
