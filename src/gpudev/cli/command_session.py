"""The session of a command: preferences, the API's address, and an authenticated API client."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar

from gpudev.sdk import client_session
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiCall, ApiReply, job_path
from gpudev.sdk.http.routines import Routine, SyncDriver
from gpudev.sdk.http.transport import HttpRequest, HttpTransport, WebSocketConnection
from gpudev.sdk.user_files import Credential
from gpudev.wire.reservations import JobList

_T = TypeVar("_T")


class CommandApi:
    """Runs the SDK's routines, and keeps raw responses for `--json`."""

    def __init__(self, client: ApiClient, transport: HttpTransport) -> None:
        self.client = client
        self._transport = transport
        self._driver = SyncDriver(transport)

    def run(self, routine: Routine[_T]) -> _T:
        return self._driver.run(routine)

    def fetch(self, call: ApiCall[_T]) -> ApiReply[_T]:
        return self._driver.run(self.client.fetch(call))

    def revoke_key(self) -> None:
        """Revoke the key of this client."""
        self._driver.run(self.client.revoke_key())

    def open_tunnel(self, job_id: str) -> WebSocketConnection:
        """Open a tunnel to the dev server's ssh server: request a token, then open its WebSocket at the proxy."""
        from gpudev.sdk.http.session_endpoints import create_proxy_token

        token = self.fetch(create_proxy_token(job_id)).value
        transport = self._transport if token.url is None else HttpTransport(token.url, name="the proxy")
        path = f"{job_path(token.reservation_id)}/ssh"
        opened = transport.open_websocket(HttpRequest("GET", path, headers={"Authorization": f"Bearer {token.token}"}))
        if isinstance(opened, WebSocketConnection):
            return opened
        raise self.client.error_from(opened)


def list_all_jobs(api: CommandApi, query: Mapping[str, Any], limit: int) -> ApiReply[JobList]:
    """One page is returned as the API sent it; several are merged into the same format."""
    pages = api.run(api.client.list_job_pages(query, limit))
    if len(pages) == 1:
        return pages[0]
    raw = [job for page in pages for job in json.loads(page.raw)["jobs"]]
    jobs = [job for page in pages for job in page.value.jobs]
    cursor = pages[-1].value.next_cursor
    return ApiReply(json.dumps({"jobs": raw, "next_cursor": cursor}).encode(), JobList(jobs=jobs, next_cursor=cursor))


class CommandSession(client_session.ClientSession):
    option_name = "--api-url"

    @cached_property
    def api(self) -> CommandApi:
        return self.new_api()

    def new_api(self) -> CommandApi:
        """A separate client, for another thread."""
        return CommandApi(self.new_client(), self.new_transport())

    def api_with_key(self, key: str) -> CommandApi:
        """Uses only this key."""
        return CommandApi(self.client_with_key(key), self.new_transport())

    def anonymous_api(self) -> CommandApi:
        """Without a key, for public endpoints such as the login methods."""
        return CommandApi(self.anonymous_client(), self.new_transport())

    def single_try_api(self) -> CommandApi:
        """For optional lookups: no retries, no login."""
        return CommandApi(self.single_try_client(), self.new_transport())

    def log_in_again(self, stored: Credential) -> Credential:
        from gpudev.cli import login_methods

        return self.store_credential(login_methods.log_in_again(self, stored))
