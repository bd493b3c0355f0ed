"""Where AWS's libraries get a role's credentials from: the single sign-on's portal, and an instance's metadata."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from support.access.sts_stub.identities import Identity
from support.access.sts_stub.server import Raw, read_message, send

SSO_TOKEN = "sso-access-token"


@dataclass
class CredentialGiver:
    identity: Identity
    address: str = ""
    asked: list[str] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            message = await read_message(reader)
            path = message.url.partition("?")[0]
            self.asked.append(path)
            await send(writer, self._answer(path, message.values("x-amz-sso_bearer_token")))
        writer.close()

    def _answer(self, path: str, bearer: list[str]) -> Raw:
        ends = datetime.now(UTC) + timedelta(hours=1)
        match path:
            case "/federation/credentials" if bearer == [SSO_TOKEN]:
                return _json(
                    {
                        "roleCredentials": {
                            "accessKeyId": self.identity.access_key,
                            "secretAccessKey": self.identity.secret,
                            "sessionToken": self.identity.token,
                            "expiration": int(ends.timestamp() * 1000),
                        }
                    }
                )
            case "/latest/api/token":
                return Raw(b"imds-token", content_type="text/plain")
            case "/latest/meta-data/iam/security-credentials/":
                return Raw(b"the-role", content_type="text/plain")
            case "/latest/meta-data/iam/security-credentials/the-role":
                return _json(
                    {
                        "Code": "Success",
                        "AccessKeyId": self.identity.access_key,
                        "SecretAccessKey": self.identity.secret,
                        "Token": self.identity.token,
                        "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
                    }
                )
            case _:
                return Raw(b"{}", 401, "application/json")


def _json(value: Any) -> Raw:
    return Raw(json.dumps(value).encode(), content_type="application/json")
