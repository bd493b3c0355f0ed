"""The proxy on the wire: a token, and what a session sends.

A session is a WebSocket at `GET /v1/jobs/{job_id}/ssh`, opened with `Authorization: Bearer TOKEN`. Binary messages
carry the bytes of one TCP connection to the dev server's ssh server; their boundaries mean nothing. An empty binary
message says that no more bytes come from that side (half-close). The server pings; clients answer as every WebSocket
does.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


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
