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
        metadata=_doc("GitHub user names; their current public keys may log in", min_length=1, max_length=20)
    )


@dataclass(frozen=True, kw_only=True)
class DevServerUser:
    github_user: str
    keys: int = field(metadata=_doc("Number of keys that GitHub listed at the time of adding"))
    added_by: str
    added_at: datetime


@dataclass(frozen=True, kw_only=True)
class DevServerUsers:
    reservation_id: str
    users: list[DevServerUser] = field(metadata=_doc("Without the owner"))
    in_effect: bool = field(metadata=_doc("Whether the dev server has applied it (before it runs: false)"))
    trouble: str | None = field(default=None, metadata=_doc("Why it is not applied yet, if something is wrong"))


@dataclass(frozen=True, kw_only=True)
class JupyterView:
    reservation_id: str
    state: str = field(metadata=_doc("off, starting, ready or failed"))
    reason: str | None = field(metadata=_doc("When failed: the cause and the remedy"))
    trouble: str | None = field(default=None, metadata=_doc("Why it is not applied yet, if something is wrong"))


@dataclass(frozen=True, kw_only=True)
class JupyterLink:
    url: str = field(metadata=_doc("Opens Jupyter in a browser, once; relative to this API if it has no host"))
    expires_at: datetime = field(metadata=_doc("Until then it opens; the browser session may continue"))


# Proxy tokens, and the protocol of a session.
#
# A session is a WebSocket at `GET /v1/jobs/{job_id}/ssh`, opened with `Authorization: Bearer TOKEN`. Binary messages
# carry the bytes of one TCP connection to the dev server's ssh server; message boundaries mean nothing. An empty
# binary message marks the end of one direction (half-close). The server pings; clients answer with pongs.


def _description(text: str) -> dict[str, Any]:
    return {"description": text}


@dataclass(frozen=True, kw_only=True)
class ProxyToken:
    token: str = field(metadata=_description("Opens sessions to this dev server; shown once"))
    reservation_id: str
    expires_at: datetime = field(metadata=_description("Until then it opens sessions; open sessions continue"))
    url: str | None = field(
        default=None, metadata=_description("The proxy's URL; null: this API, at `/v1/jobs/{job_id}/ssh`")
    )
