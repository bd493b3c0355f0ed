"""API client core: retries, key renewal, error mapping, as I/O-free generators.

It knows the wire models and how a key is presented. Where a key comes from is somebody else's business.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

from gpudev.sdk.errors import (
    ClientError,
    Forbidden,
    NotFound,
    Rejected,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UsageError,
)
from gpudev.sdk.http.endpoints import ApiCall, ApiReply, cancel_job, get_job, job_path, list_jobs
from gpudev.sdk.http.routines import OpenStream, Pause, Routine, RunFunction, Send
from gpudev.sdk.http.transport import SILENCE_SECONDS, HttpRequest, HttpResponse, LineStream
from gpudev.wire import codec
from gpudev.wire.reservations import JobList, JobView

_T = TypeVar("_T")
RETRY_PAUSES = (0.2, 0.5, 1.0)
_SLOW_FAILURE_SECONDS = 3.0
"""What took so long to fail hangs, and would hang again: whoever waits is told now."""
_LONGEST_RETRY_PAUSE = 2.0
_LARGEST_PAGE = 200
_RETRYABLE_STATUSES = (502, 503, 504)
_ERRORS_BY_STATUS: dict[int, type[ClientError]] = {401: Unauthenticated, 403: Forbidden, 404: NotFound}
_UNKNOWN_ENDPOINT_TEXTS = ("; see /docs", "is not known here")
"""How servers of every version end what they say of a path, a method or a field that they do not have."""
_NEXT_STEPS = {
    "unauthenticated": "Run `gpu-dev login`",
    "not_found": "`gpu-dev list --all` shows your reservations",
    "ambiguous_id": "Give more of the id",
}


class ApiClient:
    def __init__(
        self,
        url: str,
        find_key: Callable[[], str] | None,
        renew_key: Callable[[str], str | None] | None = None,
        *,
        pauses: Sequence[float] = RETRY_PAUSES,
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
        self._is_key_accepted = True
        """False: the key was renewed and has not been taken yet."""
        self._key_lock = Lock()

    def fetch(self, call: ApiCall[_T]) -> Routine[ApiReply[_T]]:
        """The answer, understood. Raises what a refusal means."""
        answer = yield from self.exchange(call)
        if not 200 <= answer.status < 300:
            raise self.error_from(answer)
        try:
            return ApiReply(answer.body, codec.decode_model(call.model, json.loads(answer.body)))
        except ValueError as error:
            raise self._unexpected_response(answer, str(error)) from error

    def fetch_value(self, call: ApiCall[_T]) -> Routine[_T]:
        return (yield from self.fetch(call)).value

    def list_job_pages(self, query: Mapping[str, Any], limit: int) -> Routine[list[ApiReply[JobList]]]:
        """At least one page, together at most `limit` reservations."""
        pages: list[ApiReply[JobList]] = []
        wanted, cursor = limit, None
        while True:
            asked = {**query, "limit": min(wanted, _LARGEST_PAGE)} | ({"cursor": cursor} if cursor else {})
            page = yield from self.fetch(list_jobs(asked))
            pages.append(page)
            wanted -= len(page.value.jobs)
            cursor = page.value.next_cursor
            if cursor is None or wanted <= 0 or not page.value.jobs:
                return pages

    def refresh_job(self, job: JobView) -> Routine[JobView]:
        """As it is now; as it was, where the API does not say."""
        try:
            return (yield from self.fetch_value(get_job(job.reservation_id)))
        except ClientError:
            return job

    def release_job(self, job_id: str) -> Routine[None]:
        """End it; one that has ended by itself is fine."""
        try:
            yield from self.fetch_value(cancel_job(job_id))
        except ClientError as error:
            if error.code not in ("conflict", "not_found"):
                raise

    def use_key(self, key: str) -> str | None:
        """From now on this one. Comes to the one before."""
        with self._key_lock:
            before, self._key, self._is_key_accepted = self._key, key, True
        return before

    def revoke_key(self) -> Routine[None]:
        """The key this asks with is none any more."""
        answer = yield from self.exchange(ApiCall(dict, "DELETE", "/v1/keys/current", repeatable=True))
        if answer.status not in (204, 401):
            raise self.error_from(answer)

    def exchange(self, call: ApiCall[Any]) -> Routine[HttpResponse]:
        """The answer whatever it is; with another key, if this one is not taken and there is another."""
        data = _encode_body(call.body)
        key = yield from self._load_key()
        answer = yield from self._send(self._http_request(call, data, key))
        if answer.status == 401 and (another := (yield from self._find_renewed_key(key))) is not None:
            answer = yield from self._send(self._http_request(call, data, another))
        self._is_key_accepted = self._is_key_accepted or answer.status != 401
        return answer

    def open_events(
        self, job_id: str, last_event_id: str | None, *, silence: float = SILENCE_SECONDS
    ) -> Routine[LineStream]:
        """The stream breaks when nothing is said for `silence` seconds."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        call = ApiCall(dict, "GET", f"{job_path(job_id)}/events", headers=headers)
        key = yield from self._load_key()
        opened: LineStream | HttpResponse = yield OpenStream(self._http_request(call, None, key), silence)
        if isinstance(opened, HttpResponse) and opened.status == 401:
            another = yield from self._find_renewed_key(key)
            if another is not None:
                opened = yield OpenStream(self._http_request(call, None, another), silence)
        if isinstance(opened, LineStream):
            self._is_key_accepted = True
            return opened
        raise self.error_from(opened)

    def error_from(self, answer: HttpResponse) -> ClientError:
        """What the API said no with, by its meaning."""
        problem = _read_problem(answer)
        if problem is None:
            return self._unexpected_response(answer, f"status {answer.status}, {answer.content_type}")
        code = str(problem.get("code") or "error")
        kind = _ERRORS_BY_STATUS.get(answer.status, Unavailable if answer.status >= 500 else Rejected)
        detail = str(problem["detail"])
        if detail.endswith(_UNKNOWN_ENDPOINT_TEXTS):
            # This client asks for nothing that a server of its own version does not know.
            detail = f"{detail} (this server is probably of an earlier version than this program)"
        # Where the API itself names the next step, ours would only repeat it.
        step = "" if "`gpu-dev" in detail or self._find_key is None else _NEXT_STEPS.get(code, "")
        return kind(detail, step, code=code, problem=problem)

    def _send(self, request: HttpRequest) -> Routine[HttpResponse]:
        return send_with_retries(request, self._pauses, self._now)

    def _http_request(self, call: ApiCall[Any], data: bytes | None, key: str | None) -> HttpRequest:
        headers = dict(call.headers) if key is None else {**call.headers, "Authorization": f"Bearer {key}"}
        return HttpRequest(call.method, call.path, data, headers, repeatable=call.repeatable)

    def _load_key(self) -> Routine[str | None]:
        if self._key is None and self._find_key is not None:
            yield RunFunction(self._load_key_once)
        return self._key

    def _load_key_once(self) -> None:
        """Many may ask at once; one of them looks."""
        with self._key_lock:
            if self._key is None and self._find_key is not None:
                self._key = self._find_key()

    def _find_renewed_key(self, rejected: str | None) -> Routine[str | None]:
        if rejected is None or self._renew_key is None:
            return None
        another: str | None = yield RunFunction(lambda: self._renew_key_once(rejected))
        return another

    def _renew_key_once(self, rejected: str) -> str | None:
        """A key that is fresh and refused all the same is no matter of its age: then there is no other."""
        with self._key_lock:
            if self._key != rejected:
                return self._key  # somebody else, asking at the same time, has been here
            if self._renew_key is None or not self._is_key_accepted:
                return None
            fresh = self._renew_key(rejected)
            if fresh is not None:
                self._key, self._is_key_accepted = fresh, False
            return fresh

    def _unexpected_response(self, answer: HttpResponse, what: str) -> ClientError:
        if answer.location and 300 <= answer.status < 400:
            step = f"It points to {answer.location}: if you trust that, set it with `gpu-dev config set api_url`"
            return Unreachable(f"{self._url} sends us elsewhere", sent=True, next_step=step)
        if answer.status >= 500:
            return Unreachable(f"the API at {self._url} is in trouble ({what})", sent=True, next_step="Try again later")
        step = "Check the address: `gpu-dev config show`"
        return Unreachable(f"{self._url} does not answer like a gpu-dev API ({what})", sent=True, next_step=step)


def send_with_retries(
    request: HttpRequest, pauses: Sequence[float] = RETRY_PAUSES, now: Callable[[], float] = time.monotonic
) -> Routine[HttpResponse]:
    """Again after a failure, where that does no harm."""
    for pause in (*pauses, None):
        wait, begun = None, now()
        try:
            answer: HttpResponse = yield Send(request)
        except Unreachable as error:
            harmful = error.sent and not request.repeatable
            if harmful or error.final or pause is None or now() - begun > _SLOW_FAILURE_SECONDS:
                raise
        else:
            passing = answer.status in _RETRYABLE_STATUSES and request.repeatable
            if not passing or pause is None or now() - begun > _SLOW_FAILURE_SECONDS:
                return answer
            wait = answer.retry_after
        yield Pause(min(wait or pause or 0.0, _LONGEST_RETRY_PAUSE))
    raise AssertionError("the last try answers or raises")


def _encode_body(body: object) -> bytes | None:
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise UsageError("a number that is infinite, or none at all, cannot be asked for") from error


def _read_problem(answer: HttpResponse) -> Mapping[str, Any] | None:
    if answer.content_type not in ("application/problem+json", "application/json"):
        return None
    try:
        problem = json.loads(answer.body)
    except ValueError:
        return None
    return problem if isinstance(problem, dict) and isinstance(problem.get("detail"), str) else None
