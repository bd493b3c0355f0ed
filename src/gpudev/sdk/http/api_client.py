"""API client core: retries, key renewal, error mapping, as I/O-free generators.

It knows the wire models and how to send a key; `client_session` finds the key.
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
"""A try that fails this slowly would hang again: no retry."""
_LONGEST_RETRY_PAUSE = 2.0
_LARGEST_PAGE = 200
_RETRYABLE_STATUSES = (502, 503, 504)
_ERRORS_BY_STATUS: dict[int, type[ClientError]] = {401: Unauthenticated, 403: Forbidden, 404: NotFound}
_UNKNOWN_ENDPOINT_TEXTS = ("; see /docs", "is not known here")
"""How servers end their message about an unknown path, method or field."""
_NEXT_STEPS = {
    "unauthenticated": "Run `gpu-dev login`",
    "not_found": "`gpu-dev list --all` shows your reservations",
    "ambiguous_id": "Give more digits of the id",
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
        """`find_key` is called once, when first needed; None: requests are anonymous. `renew_key` may return another
        key if the API rejects the first one. `pauses` are between tries: one try more than pauses."""
        self._url = url
        self._find_key = find_key
        self._renew_key = renew_key
        self._pauses = pauses
        self._now = now
        self._key: str | None = None
        self._is_key_accepted = True
        """False: the key was renewed and no request has succeeded with it yet."""
        self._key_lock = Lock()

    def fetch(self, call: ApiCall[_T]) -> Routine[ApiReply[_T]]:
        """The decoded response. Raises the error of an error response."""
        response = yield from self.exchange(call)
        if not 200 <= response.status < 300:
            raise self.error_from(response)
        try:
            return ApiReply(response.body, codec.decode_model(call.model, json.loads(response.body)))
        except ValueError as error:
            raise self._unexpected_response(response, str(error)) from error

    def fetch_value(self, call: ApiCall[_T]) -> Routine[_T]:
        return (yield from self.fetch(call)).value

    def list_job_pages(self, query: Mapping[str, Any], limit: int) -> Routine[list[ApiReply[JobList]]]:
        """At least one page, and at most `limit` reservations in total."""
        pages: list[ApiReply[JobList]] = []
        remaining, cursor = limit, None
        while True:
            page_query = {**query, "limit": min(remaining, _LARGEST_PAGE)} | ({"cursor": cursor} if cursor else {})
            page = yield from self.fetch(list_jobs(page_query))
            pages.append(page)
            remaining -= len(page.value.jobs)
            cursor = page.value.next_cursor
            if cursor is None or remaining <= 0 or not page.value.jobs:
                return pages

    def refresh_job(self, job: JobView) -> Routine[JobView]:
        """The current state; `job` itself if the API does not respond."""
        try:
            return (yield from self.fetch_value(get_job(job.reservation_id)))
        except ClientError:
            return job

    def release_job(self, job_id: str, exit_code: int | None = None) -> Routine[None]:
        """Cancel it, unless it has ended already. `exit_code`: of the command that ran there."""
        try:
            yield from self.fetch_value(cancel_job(job_id, exit_code))
        except ClientError as error:
            if error.code not in ("conflict", "not_found"):
                raise

    def use_key(self, key: str) -> str | None:
        """Use this key from now on; returns the previous one."""
        with self._key_lock:
            before, self._key, self._is_key_accepted = self._key, key, True
        return before

    def revoke_key(self) -> Routine[None]:
        """Revoke the key of this client."""
        response = yield from self.exchange(ApiCall(dict, "DELETE", "/v1/keys/current", repeatable=True))
        if response.status not in (204, 401):
            raise self.error_from(response)

    def exchange(self, call: ApiCall[Any]) -> Routine[HttpResponse]:
        """The response, whatever its status. Tries again with a renewed key after a 401."""
        data = _encode_body(call.body)
        key = yield from self._load_key()
        response = yield from self._send(self._http_request(call, data, key))
        if response.status == 401 and (renewed := (yield from self._find_renewed_key(key))) is not None:
            response = yield from self._send(self._http_request(call, data, renewed))
        self._is_key_accepted = self._is_key_accepted or response.status != 401
        return response

    def open_events(
        self, job_id: str, last_event_id: str | None, *, silence: float = SILENCE_SECONDS
    ) -> Routine[LineStream]:
        """The stream breaks after `silence` seconds without data."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        call = ApiCall(dict, "GET", f"{job_path(job_id)}/events", headers=headers)
        key = yield from self._load_key()
        opened: LineStream | HttpResponse = yield OpenStream(self._http_request(call, None, key), silence)
        if isinstance(opened, HttpResponse) and opened.status == 401:
            renewed = yield from self._find_renewed_key(key)
            if renewed is not None:
                opened = yield OpenStream(self._http_request(call, None, renewed), silence)
        if isinstance(opened, LineStream):
            self._is_key_accepted = True
            return opened
        raise self.error_from(opened)

    def error_from(self, response: HttpResponse) -> ClientError:
        """The error for an error response."""
        problem = _read_problem(response)
        if problem is None:
            return self._unexpected_response(response, f"status {response.status}, {response.content_type}")
        code = str(problem.get("code") or "error")
        kind = _ERRORS_BY_STATUS.get(response.status, Unavailable if response.status >= 500 else Rejected)
        detail = str(problem["detail"])
        if detail.endswith(_UNKNOWN_ENDPOINT_TEXTS):
            # A server of the same version knows every request of this client.
            detail = f"{detail} (this server probably has an earlier version than this client)"
        # If the API names the next step itself, ours would repeat it.
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
        """Thread-safe: only one thread calls `find_key`."""
        with self._key_lock:
            if self._key is None and self._find_key is not None:
                self._key = self._find_key()

    def _find_renewed_key(self, rejected: str | None) -> Routine[str | None]:
        if rejected is None or self._renew_key is None:
            return None
        renewed: str | None = yield RunFunction(lambda: self._renew_key_once(rejected))
        return renewed

    def _renew_key_once(self, rejected: str) -> str | None:
        """None if a renewed key was rejected as well: then the key's age is not the cause."""
        with self._key_lock:
            if self._key != rejected:
                return self._key  # renewed meanwhile by another thread
            if self._renew_key is None or not self._is_key_accepted:
                return None
            renewed = self._renew_key(rejected)
            if renewed is not None:
                self._key, self._is_key_accepted = renewed, False
            return renewed

    def _unexpected_response(self, response: HttpResponse, what: str) -> ClientError:
        if response.location and 300 <= response.status < 400:
            step = f"It redirects to {response.location}; if you trust that, set it with `gpu-dev config set api_url`"
            return Unreachable(f"{self._url} redirects to another address", sent=True, next_step=step)
        if response.status >= 500:
            return Unreachable(f"the API at {self._url} fails ({what})", sent=True, next_step="Try again later")
        step = "Check the address: `gpu-dev config show`"
        return Unreachable(f"{self._url} does not respond like a gpu-dev API ({what})", sent=True, next_step=step)


def send_with_retries(
    request: HttpRequest, pauses: Sequence[float] = RETRY_PAUSES, now: Callable[[], float] = time.monotonic
) -> Routine[HttpResponse]:
    """Retries after a failure if a repeat is safe."""
    for pause in (*pauses, None):
        wait, started = None, now()
        try:
            response: HttpResponse = yield Send(request)
        except Unreachable as error:
            unsafe = error.sent and not request.repeatable
            if unsafe or error.final or pause is None or now() - started > _SLOW_FAILURE_SECONDS:
                raise
        else:
            retryable = response.status in _RETRYABLE_STATUSES and request.repeatable
            if not retryable or pause is None or now() - started > _SLOW_FAILURE_SECONDS:
                return response
            wait = response.retry_after
        yield Pause(min(wait or pause or 0.0, _LONGEST_RETRY_PAUSE))
    raise AssertionError("the last try returns or raises")


def _encode_body(body: object) -> bytes | None:
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise UsageError("invalid number (infinite or NaN)") from error


def _read_problem(response: HttpResponse) -> Mapping[str, Any] | None:
    if response.content_type not in ("application/problem+json", "application/json"):
        return None
    try:
        problem = json.loads(response.body)
    except ValueError:
        return None
    return problem if isinstance(problem, dict) and isinstance(problem.get("detail"), str) else None
