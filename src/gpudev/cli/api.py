"""The API as the commands call it: typed questions, typed answers, and its refusals as exit codes.

It knows the wire models and how a key is presented. Where a key comes from is somebody else's business.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from gpudev.cli.exits import CliError, Exit
from gpudev.cli.transport import SILENCE_SECONDS, Answer, Request, Stream, Transport, Unreachable
from gpudev.wire import codec
from gpudev.wire.jobs import ExtendRequest, JobList, JobView, PriorityRequest, SubmitRequest

_T = TypeVar("_T")
_EXITS = {401: Exit.AUTH, 403: Exit.AUTH, 404: Exit.NOT_FOUND}
_NEXT_STEPS = {
    "unauthenticated": "Run `gpu-dev login`",
    "not_found": "`gpu-dev list --all` shows your reservations",
    "ambiguous_id": "Give more of the id",
}


class Reply(NamedTuple, Generic[_T]):
    """An answer twice: as it was said, for programs, and understood, for us."""

    raw: bytes
    value: _T


class Unauthenticated(CliError):
    """The key was not taken."""


class Api:
    def __init__(
        self, transport: Transport, url: str, key: Callable[[], str], renew: Callable[[], str | None] | None = None
    ) -> None:
        """`key` is asked for once, when first needed; `renew` may find another when that one was not taken."""
        self._transport = transport
        self._url = url
        self._find_key = key
        self._renew = renew
        self._key: str | None = None

    def submit(self, request: SubmitRequest, idempotency_key: str) -> Reply[JobView]:
        headers = {"Idempotency-Key": idempotency_key}
        body = codec.write(request, without_none=True)
        return self._ask(JobView, "POST", "/v1/jobs/submit", body, headers=headers, repeatable=True)

    def get(self, job_id: str) -> Reply[JobView]:
        return self._ask(JobView, "GET", _job_path(job_id))

    def list_page(self, query: Mapping[str, Any]) -> Reply[JobList]:
        return self._ask(JobList, "GET", f"/v1/jobs?{urlencode(query, doseq=True)}")

    def cancel(self, job_id: str) -> Reply[JobView]:
        return self._ask(JobView, "POST", f"{_job_path(job_id)}/cancel", repeatable=True)

    def extend(self, job_id: str, request: ExtendRequest) -> Reply[JobView]:
        return self._ask(JobView, "POST", f"{_job_path(job_id)}/extend", codec.write(request), repeatable=False)

    def prioritise(self, job_id: str, request: PriorityRequest) -> Reply[JobView]:
        return self._ask(JobView, "POST", f"{_job_path(job_id)}/priority", codec.write(request), repeatable=True)

    def read(self, model: type[_T], path: str) -> Reply[_T]:
        """Whatever else is there to be read."""
        return self._ask(model, "GET", path)

    def events(self, job_id: str, last_event_id: str | None, *, silence: float = SILENCE_SECONDS) -> Stream:
        """The stream breaks when nothing is said for `silence` seconds."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        path = f"{_job_path(job_id)}/events"

        def open_stream() -> Stream | Answer:
            return self._transport.open_stream(Request("GET", path, headers=self._with_key(headers)), silence)

        opened = open_stream()
        if isinstance(opened, Answer) and opened.status == 401 and self._find_another_key():
            opened = open_stream()
        if isinstance(opened, Stream):
            return opened
        raise self._refusal(opened)

    def _ask(
        self,
        model: type[_T],
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> Reply[_T]:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        safe = method == "GET" if repeatable is None else repeatable

        def ask() -> Answer:
            return self._transport.ask(Request(method, path, data, self._with_key(headers or {}), repeatable=safe))

        answer = ask()
        if answer.status == 401 and self._find_another_key():
            answer = ask()
        if not 200 <= answer.status < 300:
            raise self._refusal(answer)
        try:
            return Reply(answer.body, codec.read(model, json.loads(answer.body)))
        except ValueError as error:
            raise self._stranger(answer, str(error)) from error

    def _with_key(self, headers: Mapping[str, str]) -> dict[str, str]:
        if self._key is None:
            self._key = self._find_key()
        return {**headers, "Authorization": f"Bearer {self._key}"}

    def _find_another_key(self) -> bool:
        """Once: a key that is fresh and refused all the same is no matter of its age."""
        renew, self._renew = self._renew, None
        fresh = renew() if renew else None
        self._key = fresh or self._key
        return fresh is not None

    def _refusal(self, answer: Answer) -> CliError:
        """What the API said no with, as the exit code that means the same."""
        problem = _problem(answer)
        if problem is None:
            return self._stranger(answer, f"status {answer.status}, {answer.content_type}")
        code = str(problem.get("code") or "error")
        exit_code = _EXITS.get(answer.status, Exit.UNREACHABLE if answer.status >= 500 else Exit.REFUSED)
        kind = Unauthenticated if answer.status == 401 else CliError
        detail = str(problem["detail"])
        # Where the API itself names the next step, ours would only repeat it.
        step = "" if "`gpu-dev" in detail else _NEXT_STEPS.get(code, "")
        return kind(exit_code, detail, step, code=code, problem=problem)

    def _stranger(self, answer: Answer, what: str) -> CliError:
        if answer.location and 300 <= answer.status < 400:
            step = f"It points to {answer.location}: if you trust that, set it with `gpu-dev config set api_url`"
            return Unreachable(f"{self._url} sends us elsewhere", sent=True, next_step=step)
        if answer.status >= 500:
            return Unreachable(f"the API at {self._url} is in trouble ({what})", sent=True, next_step="Try again later")
        step = "Check the address: `gpu-dev config show`"
        return Unreachable(f"{self._url} does not answer like a gpu-dev API ({what})", sent=True, next_step=step)


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _problem(answer: Answer) -> dict[str, Any] | None:
    if answer.content_type not in ("application/problem+json", "application/json"):
        return None
    try:
        problem = json.loads(answer.body)
    except ValueError:
        return None
    return problem if isinstance(problem, dict) and isinstance(problem.get("detail"), str) else None
