"""A server one can log in to, from a test's side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpudev.adapters.aws.login import AwsIdentityProvider
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.authentication import Authentication
from gpudev.api.dependencies import ApiDependencies
from gpudev.ports.access import SignedRequest
from support.access.aws_signatures import Draft, wire
from support.access.sts_stub import Identity, StsStub
from support.clock import ManualClock
from support.polling import eventually_async


@dataclass
class Place:
    client: httpx2.AsyncClient
    stores: Stores
    clock: ManualClock
    sts: StsStub
    services: ApiDependencies
    aws: AwsIdentityProvider

    async def nonce(self) -> str:
        answer = await self.client.post("/v1/auth/nonce")
        assert answer.status_code == 200, answer.text
        nonce: str = answer.json()["nonce"]
        return nonce

    async def draft(self, **changes: Any) -> Draft:
        """With a nonce of this server, signed now."""
        return Draft(**({"nonce": await self.nonce(), "at": self.clock.now()} | changes))

    async def send(self, request: SignedRequest) -> httpx2.Response:
        return await self.client.post("/v1/auth/aws-login", json=wire(request))

    async def log_in(self, identity: Identity) -> httpx2.Response:
        """As the client does it."""
        self.sts.know(identity)
        return await self.send((await self.draft(identity=identity)).sign())

    async def ask(self, key: str) -> int:
        """How a request with this key is answered."""
        return (await self.client.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})).status_code

    async def row(self, username: str) -> dict[str, Any]:
        async with self.stores.pool.acquire() as connection:
            found = await connection.fetchrow("SELECT * FROM api_users WHERE username = $1", username)
        assert found is not None, f"there is no user {username}"
        return dict(found)

    async def users(self) -> list[str]:
        return [user.username for user in await self.stores.users.list_users()]


@dataclass
class Served:
    """The same on a real socket, by the real clock; whatever arrives is kept."""

    url: str
    stores: Stores
    sts: StsStub
    server: uvicorn.Server
    arrived: list[str]
    authentication: Authentication

    def cut_connections(self) -> None:
        for connection in list(self.server.server_state.connections):
            connection.transport.abort()

    async def end_keys(self) -> None:
        """Every key's time is over, and the API has noticed."""
        async with self.stores.pool.acquire() as connection:
            ended = await connection.fetch(
                "UPDATE api_keys SET expires_at = clock_timestamp() WHERE is_active RETURNING key_id"
            )
        for row in ended:
            self.authentication.forget_key(row["key_id"])

    def is_followed(self, key: str) -> bool:
        return any("/events " in line and key in line for line in self.arrived)

    async def until(self, claim: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        await eventually_async(claim, f"never happened: {what}", within=seconds)

    def requests(self, path: str) -> list[str]:
        return [line for line in self.arrived if f" {path} " in line]


class Listening:
    """Everything that is sent to an app, as text."""

    def __init__(self, app: ASGIApp, arrived: list[str]) -> None:
        self._app = app
        self._arrived = arrived

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        at = len(self._arrived)
        self._arrived.append(f"{scope['method']} {scope['path']} {scope['headers']}")

        async def receive_listening() -> Message:
            message = await receive()
            self._arrived[at] += bytes(message.get("body", b"")).decode()
            return message

        await self._app(scope, receive_listening, send)
