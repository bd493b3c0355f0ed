"""Speaking with the API: retries, keys and refusals. It does nothing itself: its routines say what is to be sent.

It knows the wire models and how a key is presented. Where a key comes from is somebody else's business.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

from gpudev.sdk.effects import Do, Open, Pause, Routine, Send
from gpudev.sdk.errors import (
    ClientError,
    Forbidden,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UsageError,
)
from gpudev.sdk.http.endpoints import Call, Reply, job_path
from gpudev.sdk.http.transport import SILENCE_SECONDS, Answer, Request, Stream
from gpudev.wire import codec

_T = TypeVar("_T")
PAUSES = (0.2, 0.5, 1.0)
_SLOW_FAILURE_SECONDS = 3.0
"""What took so long to fail hangs, and would hang again: whoever waits is told now."""
_LONGEST_PAUSE = 2.0
_TRANSIENT = (502, 503, 504)
_KINDS: dict[int, type[ClientError]] = {401: Unauthenticated, 403: Forbidden, 404: NotFound}
_UNKNOWN_TO_IT = ("here; see /docs for what there is", "here; see /docs for what is", "is not known here")
"""How servers of every version end what they say of a path, a method or a field that they do not have."""
_NEXT_STEPS = {
    "unauthenticated": "Run `gpu-dev login`",
    "not_found": "`gpu-dev list --all` shows your reservations",
    "ambiguous_id": "Give more of the id",
}


class Core:
    def __init__(
        self,
        url: str,
        find_key: Callable[[], str] | None,
        renew_key: Callable[[str], str | None] | None = None,
        *,
        pauses: Sequence[float] = PAUSES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find_key` is asked once, when first needed; without it nobody in particular asks. `renew_key` may find
        another when that one was not taken. `pauses` between tries: as many tries as pauses, and one."""
        self._url = url
        self._find_key = find_key
        self._renew_key = renew_key
        self._pauses = pauses
        self._now = now
        self._key: str | None = None
        self._is_proven = True
        """False: the key was renewed and has not been taken yet."""
        self._finding = Lock()

    def ask(self, call: Call[_T]) -> Routine[Reply[_T]]:
        """The answer, understood. Raises what a refusal means."""
        answer = yield from self.exchange(call)
        if not 200 <= answer.status < 300:
            raise self.refusal(answer)
        try:
            return Reply(answer.body, codec.decode_model(call.model, json.loads(answer.body)))
        except ValueError as error:
            raise self._stranger(answer, str(error)) from error

    def value(self, call: Call[_T]) -> Routine[_T]:
        return (yield from self.ask(call)).value

    def use_key(self, key: str) -> str | None:
        """From now on this one. Comes to the one before."""
        with self._finding:
            before, self._key, self._is_proven = self._key, key, True
        return before

    def revoke_key(self) -> Routine[None]:
        """The key this asks with is none any more."""
        answer = yield from self.exchange(Call(dict, "DELETE", "/v1/keys/current", repeatable=True))
        if answer.status not in (204, 401):
            raise self.refusal(answer)

    def exchange(self, call: Call[Any]) -> Routine[Answer]:
        """The answer whatever it is; with another key, if this one is not taken and there is another."""
        data = _as_json(call.body)
        key = yield from self._present_key()
        answer = yield from self._send(self._request(call, data, key))
        if answer.status == 401 and (another := (yield from self._another_key(key))) is not None:
            answer = yield from self._send(self._request(call, data, another))
        self._is_proven = self._is_proven or answer.status != 401
        return answer

    def open_events(
        self, job_id: str, last_event_id: str | None, *, silence: float = SILENCE_SECONDS
    ) -> Routine[Stream]:
        """The stream breaks when nothing is said for `silence` seconds."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        call = Call(dict, "GET", f"{job_path(job_id)}/events", headers=headers)
        key = yield from self._present_key()
        opened: Stream | Answer = yield Open(self._request(call, None, key), silence)
        if isinstance(opened, Answer) and opened.status == 401:
            another = yield from self._another_key(key)
            if another is not None:
                opened = yield Open(self._request(call, None, another), silence)
        if isinstance(opened, Stream):
            self._is_proven = True
            return opened
        raise self.refusal(opened)

    def refusal(self, answer: Answer) -> ClientError:
        """What the API said no with, by its meaning."""
        problem = _problem(answer)
        if problem is None:
            return self._stranger(answer, f"status {answer.status}, {answer.content_type}")
        code = str(problem.get("code") or "error")
        kind = _KINDS.get(answer.status, Unavailable if answer.status >= 500 else Refused)
        detail = str(problem["detail"])
        if detail.endswith(_UNKNOWN_TO_IT):
            # This client asks for nothing that a server of its own version does not know.
            detail = f"{detail} (this server is probably of an earlier version than this program)"
        # Where the API itself names the next step, ours would only repeat it.
        step = "" if "`gpu-dev" in detail or self._find_key is None else _NEXT_STEPS.get(code, "")
        return kind(detail, step, code=code, problem=problem)

    def _send(self, request: Request) -> Routine[Answer]:
        return send_patiently(request, self._pauses, self._now)

    def _request(self, call: Call[Any], data: bytes | None, key: str | None) -> Request:
        headers = dict(call.headers) if key is None else {**call.headers, "Authorization": f"Bearer {key}"}
        return Request(call.method, call.path, data, headers, repeatable=call.repeatable)

    def _present_key(self) -> Routine[str | None]:
        if self._key is None and self._find_key is not None:
            yield Do(self._find_once)
        return self._key

    def _find_once(self) -> None:
        """Many may ask at once; one of them looks."""
        with self._finding:
            if self._key is None and self._find_key is not None:
                self._key = self._find_key()

    def _another_key(self, refused: str | None) -> Routine[str | None]:
        if refused is None or self._renew_key is None:
            return None
        another: str | None = yield Do(lambda: self._renew_once(refused))
        return another

    def _renew_once(self, refused: str) -> str | None:
        """A key that is fresh and refused all the same is no matter of its age: then there is no other."""
        with self._finding:
            if self._key != refused:
                return self._key  # somebody else, asking at the same time, has been here
            if self._renew_key is None or not self._is_proven:
                return None
            fresh = self._renew_key(refused)
            if fresh is not None:
                self._key, self._is_proven = fresh, False
            return fresh

    def _stranger(self, answer: Answer, what: str) -> ClientError:
        if answer.location and 300 <= answer.status < 400:
            step = f"It points to {answer.location}: if you trust that, set it with `gpu-dev config set api_url`"
            return Unreachable(f"{self._url} sends us elsewhere", sent=True, next_step=step)
        if answer.status >= 500:
            return Unreachable(f"the API at {self._url} is in trouble ({what})", sent=True, next_step="Try again later")
        step = "Check the address: `gpu-dev config show`"
        return Unreachable(f"{self._url} does not answer like a gpu-dev API ({what})", sent=True, next_step=step)


def send_patiently(
    request: Request, pauses: Sequence[float] = PAUSES, now: Callable[[], float] = time.monotonic
) -> Routine[Answer]:
    """Again after a failure, where that does no harm."""
    for pause in (*pauses, None):
        wait, begun = None, now()
        try:
            answer: Answer = yield Send(request)
        except Unreachable as error:
            harmful = error.sent and not request.repeatable
            if harmful or error.final or pause is None or now() - begun > _SLOW_FAILURE_SECONDS:
                raise
        else:
            passing = answer.status in _TRANSIENT and request.repeatable
            if not passing or pause is None or now() - begun > _SLOW_FAILURE_SECONDS:
                return answer
            wait = answer.retry_after
        yield Pause(min(wait or pause or 0.0, _LONGEST_PAUSE))
    raise AssertionError("the last try answers or raises")


def _as_json(body: object) -> bytes | None:
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise UsageError("a number that is infinite, or none at all, cannot be asked for") from error


def _problem(answer: Answer) -> Mapping[str, Any] | None:
    if answer.content_type not in ("application/problem+json", "application/json"):
        return None
    try:
        problem = json.loads(answer.body)
    except ValueError:
        return None
    return problem if isinstance(problem, dict) and isinstance(problem.get("detail"), str) else None
