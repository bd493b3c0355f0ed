"""The API as the commands call it: what the SDK's routines come to, waited for, with the answers as they were said."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from gpudev.sdk.effects import Routine
from gpudev.sdk.http import endpoints
from gpudev.sdk.http.api_client import Core
from gpudev.sdk.http.endpoints import Call, Reply
from gpudev.sdk.http.routines import BlockingDriver
from gpudev.sdk.http.transport import Line, Request, Transport
from gpudev.wire.reservations import ExtendRequest, JobList, JobView, PriorityRequest, SubmitRequest

__all__ = ["Api", "Reply"]
_T = TypeVar("_T")


class Api:
    def __init__(self, core: Core, transport: Transport) -> None:
        self.core = core
        self._transport = transport
        self._driver = BlockingDriver(transport)

    def run(self, routine: Routine[_T]) -> _T:
        """What it comes to."""
        return self._driver.run(routine)

    def ask(self, call: Call[_T]) -> Reply[_T]:
        return self._driver.run(self.core.ask(call))

    def submit(self, request: SubmitRequest, idempotency_key: str) -> Reply[JobView]:
        return self.ask(endpoints.submit(request, idempotency_key))

    def get(self, job_id: str) -> Reply[JobView]:
        return self.ask(endpoints.get_job(job_id))

    def list_page(self, query: Mapping[str, Any]) -> Reply[JobList]:
        return self.ask(endpoints.list_jobs(query))

    def cancel(self, job_id: str) -> Reply[JobView]:
        return self.ask(endpoints.cancel(job_id))

    def extend(self, job_id: str, request: ExtendRequest) -> Reply[JobView]:
        return self.ask(endpoints.extend(job_id, request))

    def prioritise(self, job_id: str, request: PriorityRequest) -> Reply[JobView]:
        return self.ask(endpoints.prioritise(job_id, request))

    def read(self, model: type[_T], path: str) -> Reply[_T]:
        """Whatever else is there to be read."""
        return self.ask(endpoints.reading(model, path))

    def post(self, model: type[_T], path: str, body: object = None, *, repeatable: bool = False) -> Reply[_T]:
        """Whatever else is there to be done."""
        return self.ask(Call(model, "POST", path, body, repeatable=repeatable))

    def revoke_key(self) -> None:
        """The key this asks with is none any more."""
        self._driver.run(self.core.revoke_key())

    def act(self, model: type[_T], method: str, path: str, body: object = None, *, idempotency_key: str) -> Reply[_T]:
        """Whatever else can be done. It is done once, however often it has to be said."""
        return self.ask(endpoints.acting_once(model, method, path, body, idempotency_key=idempotency_key))

    def open_tunnel(self, job_id: str) -> Line:
        """To the ssh server of this dev server, through the proxy: a token first, then the way that it opens."""
        from gpudev.wire.proxy import ProxyToken

        token = self.post(ProxyToken, f"{endpoints.job_path(job_id)}/proxy-token", repeatable=True).value
        transport = self._transport if token.url is None else Transport(token.url, name="the proxy")
        path = f"/v1/jobs/{quote(token.reservation_id, safe='')}/ssh"
        opened = transport.open_websocket(Request("GET", path, headers={"Authorization": f"Bearer {token.token}"}))
        if isinstance(opened, Line):
            return opened
        raise self.core.refusal(opened)
