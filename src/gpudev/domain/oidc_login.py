"""What a login in the browser has the issuer sign along: for which server it is.

An ID token is for gpu-dev, whichever server that is. Somebody who was lured to another server that names the same
issuer would bring their token there, and that server could take it to the real one. The nonce is the one thing in a
token that the client chooses, so it says where the client is logging in. Client and server agree on it here.
"""

import base64
import hashlib
import re
from collections.abc import Iterable

_BOUND_NONCE = re.compile(r"[A-Za-z0-9_-]{43}\.([A-Za-z0-9_-]{43})")


def bind_nonce(random: str, server: str) -> str:
    """`random`: 43 letters of one's own. `server`: what it is called by whoever logs in there."""
    return f"{random}.{_server_digest(server)}"


def names_another_server(nonce: object, servers: Iterable[str]) -> bool:
    """Whether this nonce names a server, and none of these. What our client did not make names none."""
    named = _BOUND_NONCE.fullmatch(nonce) if isinstance(nonce, str) else None
    return named is not None and named[1] not in {_server_digest(server) for server in servers}


def _server_digest(server: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(f"gpu-dev {server}".encode()).digest()).decode().rstrip("=")
