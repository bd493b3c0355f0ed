"""Sessions on the wire: proxy tokens and their protocol, collaborators, Jupyter."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

_STRICT: dict[str, Any] = {"extra": "forbid"}


def _doc(text: str, **constraints: Any) -> dict[str, Any]:
    return {"description": text, **constraints}


@dataclass(frozen=True, kw_only=True)
class AddUsersRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    github_users: list[str] = field(
        metadata=_doc("GitHub names; the keys they publish now may log in", min_length=1, max_length=20)
    )


@dataclass(frozen=True, kw_only=True)
class DevServerUser:
    github_user: str
    keys: int = field(metadata=_doc("How many keys GitHub published when they were added"))
    added_by: str
    added_at: datetime


@dataclass(frozen=True, kw_only=True)
class DevServerUsers:
    reservation_id: str
    users: list[DevServerUser] = field(metadata=_doc("Beside the owner"))
    in_effect: bool = field(metadata=_doc("Whether the dev server has it so (before it runs: false)"))
    trouble: str | None = field(default=None, metadata=_doc("Why it does not have it so yet, if something is wrong"))


@dataclass(frozen=True, kw_only=True)
class JupyterView:
    reservation_id: str
    state: str = field(metadata=_doc("off, starting, ready or failed"))
    reason: str | None = field(metadata=_doc("When failed: why, and what can be done about it"))
    trouble: str | None = field(default=None, metadata=_doc("Why the dev server could not be told yet"))


@dataclass(frozen=True, kw_only=True)
class JupyterLink:
    url: str = field(metadata=_doc("Opens Jupyter in a browser, once; relative to this API where it has no host"))
    expires_at: datetime = field(metadata=_doc("Until then it opens; the browser it opened in may go on"))


# Proxy tokens, and the protocol of a session.
#
# A session is a WebSocket at `GET /v1/jobs/{job_id}/ssh`, opened with `Authorization: Bearer TOKEN`. Binary messages
# carry the bytes of one TCP connection to the dev server's ssh server; message boundaries mean nothing. An empty
# binary message marks the end of one direction (half-close). The server pings; clients answer as every WebSocket
# does.


def _description(text: str) -> dict[str, Any]:
    return {"description": text}


@dataclass(frozen=True, kw_only=True)
class ProxyToken:
    token: str = field(metadata=_description("Opens sessions to this one dev server; shown this once"))
    reservation_id: str
    expires_at: datetime = field(metadata=_description("Until then it opens sessions; those it opened go on"))
    url: str | None = field(
        default=None, metadata=_description("Where the proxy is; null: where this API is, at `/v1/jobs/{job_id}/ssh`")
    )
