"""The API as the commands call it: typed questions, typed answers, and its refusals as exit codes.

It knows the wire models and how a key is presented. Where a key comes from is somebody else's business.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from gpudev.cli.exits import CliError, Exit
from gpudev.cli.transport import SILENCE_SECONDS, Answer, Line, Request, Stream, Transport, Unreachable
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
        self,
        transport: Transport,
        url: str,
        key: Callable[[], str] | None,
        renew: Callable[[str], str | None] | None = None,
    ) -> None:
        """`key` is asked for once, when first needed; without it nobody in particular asks. `renew` may find another
        when that one was not taken."""
        self._transport = transport
        self._url = url
        self._find_key = key
        self._renew = renew
        self._key: str | None = None
        self._is_proven = True
        """False: the key was renewed and has not been taken yet."""

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

    def post(self, model: type[_T], path: str, body: object = None, *, repeatable: bool = False) -> Reply[_T]:
        """Whatever else is there to be done."""
        return self._ask(model, "POST", path, body, repeatable=repeatable)

    def revoke_key(self) -> None:
        """The key this asks with is none any more."""
        answer = self._ask_patiently("DELETE", "/v1/keys/current", None, {}, repeatable=True)
        if answer.status not in (204, 401):
            raise self._refusal(answer)

    def act(self, model: type[_T], method: str, path: str, body: object = None, *, idempotency_key: str) -> Reply[_T]:
        """Whatever else can be done. It is done once, however often it has to be said."""
        headers = {"Idempotency-Key": idempotency_key}
        return self._ask(model, method, path, body, headers=headers, repeatable=True)

    def open_tunnel(self, job_id: str) -> Line:
        """To the ssh server of this dev server, through the proxy: a token first, then the way that it opens."""
        from gpudev.wire.proxy import ProxyToken

        token = self.post(ProxyToken, f"{_job_path(job_id)}/proxy-token", repeatable=True).value
        transport = self._transport if token.url is None else Transport(token.url, name="the proxy")
        path = f"/v1/jobs/{quote(token.reservation_id, safe='')}/ssh"
        opened = transport.open_websocket(Request("GET", path, headers={"Authorization": f"Bearer {token.token}"}))
        if isinstance(opened, Line):
            return opened
        raise self._refusal(opened)

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
            self._is_proven = True
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
        answer = self._ask_patiently(method, path, data, headers or {}, repeatable=safe)
        if not 200 <= answer.status < 300:
            raise self._refusal(answer)
        try:
            return Reply(answer.body, codec.read(model, json.loads(answer.body)))
        except ValueError as error:
            raise self._stranger(answer, str(error)) from error

    def _ask_patiently(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], *, repeatable: bool
    ) -> Answer:
        """With another key, if this one is not taken and there is another."""

        def ask() -> Answer:
            return self._transport.ask(Request(method, path, data, self._with_key(headers), repeatable=repeatable))

        answer = ask()
        if answer.status == 401 and self._find_another_key():
            answer = ask()
        self._is_proven = self._is_proven or answer.status != 401
        return answer

    def _with_key(self, headers: Mapping[str, str]) -> dict[str, str]:
        if self._find_key is None:
            return dict(headers)
        if self._key is None:
            self._key = self._find_key()
        return {**headers, "Authorization": f"Bearer {self._key}"}

    def _find_another_key(self) -> bool:
        """A key that is fresh and refused all the same is no matter of its age: then there is no other."""
        if self._renew is None or self._key is None or not self._is_proven:
            return False
        fresh = self._renew(self._key)
        if fresh is None:
            return False
        self._key, self._is_proven = fresh, False
        return True

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
        step = "" if "`gpu-dev" in detail or self._find_key is None else _NEXT_STEPS.get(code, "")
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
