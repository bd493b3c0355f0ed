"""API calls of the commands: the SDK's routines, run to their end, with raw responses for `--json`."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from gpudev.sdk.http import endpoints
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiCall, ApiReply
from gpudev.sdk.http.routines import Routine, SyncDriver
from gpudev.sdk.http.transport import HttpRequest, HttpTransport, WebSocketConnection
from gpudev.wire.reservations import ExtendRequest, JobList, JobView, PriorityRequest, SubmitRequest

__all__ = ["ApiReply", "CommandApi"]
_T = TypeVar("_T")


class CommandApi:
    def __init__(self, core: ApiClient, transport: HttpTransport) -> None:
        self.client = core
        self._transport = transport
        self._driver = SyncDriver(transport)

    def run(self, routine: Routine[_T]) -> _T:
        """What it comes to."""
        return self._driver.run(routine)

    def fetch(self, call: ApiCall[_T]) -> ApiReply[_T]:
        return self._driver.run(self.client.fetch(call))

    def submit(self, request: SubmitRequest, idempotency_key: str) -> ApiReply[JobView]:
        return self.fetch(endpoints.submit_job(request, idempotency_key))

    def get_job(self, job_id: str) -> ApiReply[JobView]:
        return self.fetch(endpoints.get_job(job_id))

    def list_jobs_page(self, query: Mapping[str, Any]) -> ApiReply[JobList]:
        return self.fetch(endpoints.list_jobs(query))

    def cancel(self, job_id: str) -> ApiReply[JobView]:
        return self.fetch(endpoints.cancel_job(job_id))

    def extend(self, job_id: str, request: ExtendRequest) -> ApiReply[JobView]:
        return self.fetch(endpoints.extend_job(job_id, request))

    def prioritise(self, job_id: str, request: PriorityRequest) -> ApiReply[JobView]:
        return self.fetch(endpoints.prioritise_job(job_id, request))

    def read_path(self, model: type[_T], path: str) -> ApiReply[_T]:
        """Whatever else is there to be read."""
        return self.fetch(endpoints.read_call(model, path))

    def post_path(self, model: type[_T], path: str, body: object = None, *, repeatable: bool = False) -> ApiReply[_T]:
        """Whatever else is there to be done."""
        return self.fetch(ApiCall(model, "POST", path, body, repeatable=repeatable))

    def revoke_key(self) -> None:
        """The key this asks with is none any more."""
        self._driver.run(self.client.revoke_key())

    def act(
        self, model: type[_T], method: str, path: str, body: object = None, *, idempotency_key: str
    ) -> ApiReply[_T]:
        """Whatever else can be done. It is done once, however often it has to be said."""
        return self.fetch(endpoints.idempotent_call(model, method, path, body, idempotency_key=idempotency_key))

    def open_tunnel(self, job_id: str) -> WebSocketConnection:
        """To the ssh server of this dev server, through the proxy: a token first, then the way that it opens."""
        from gpudev.wire.sessions import ProxyToken

        token = self.post_path(ProxyToken, f"{endpoints.job_path(job_id)}/proxy-token", repeatable=True).value
        transport = self._transport if token.url is None else HttpTransport(token.url, name="the proxy")
        path = f"/v1/jobs/{quote(token.reservation_id, safe='')}/ssh"
        opened = transport.open_websocket(HttpRequest("GET", path, headers={"Authorization": f"Bearer {token.token}"}))
        if isinstance(opened, WebSocketConnection):
            return opened
        raise self.client.error_from(opened)


# Lists that come in pages, up to as many as were asked for.


_LARGEST_PAGE = 200


def list_all_jobs(api: CommandApi, query: Mapping[str, Any], limit: int) -> ApiReply[JobList]:
    """One page is the API's answer untouched; several are put together in the same form."""
    pages: list[ApiReply[JobList]] = []
    wanted, cursor = limit, None
    while True:
        asked = {**query, "limit": min(wanted, _LARGEST_PAGE)} | ({"cursor": cursor} if cursor else {})
        page = api.list_jobs_page(asked)
        pages.append(page)
        wanted -= len(page.value.jobs)
        cursor = page.value.next_cursor
        if cursor is None or wanted <= 0 or not page.value.jobs:
            break
    if len(pages) == 1:
        return pages[0]
    raw = [job for page in pages for job in json.loads(page.raw)["jobs"]]
    jobs = [job for page in pages for job in page.value.jobs]
    return ApiReply(json.dumps({"jobs": raw, "next_cursor": cursor}).encode(), JobList(jobs=jobs, next_cursor=cursor))
