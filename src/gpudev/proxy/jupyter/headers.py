"""Header rules of the Jupyter proxy: what is accepted, forwarded and returned. Pure.

Jupyter is untrusted: its users have root in the dev server, and browsers treat its responses as ours. So no credentials
of ours are forwarded to it, and only those of its response headers come out that have
no effect outside its path.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from gpudev.domain.errors import Forbidden
from gpudev.workflows.sessions.jupyter_access import parse_whole_id

COOKIE_NAME = "gpudev_jupyter"
ENTER_PATH = "enter"
API_PATHS = frozenset({"enable", "disable", "link"})
"""Endpoints of the API below the same path."""
Headers = list[tuple[bytes, bytes]]
_PATH = re.compile(r"/v1/jobs/([0-9a-fA-F-]{32,36})/jupyter/(.*)", re.DOTALL)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ALLOWED_METHODS = frozenset({*_SAFE_METHODS, "POST", "PUT", "PATCH", "DELETE"})
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    }
)
_DROPPED_REQUEST_HEADERS = _HOP_BY_HOP | {b"authorization", b"cookie", b"x-forwarded-for", b"forwarded", b"x-real-ip"}
_RETURNED_HEADERS = frozenset(
    {
        b"accept-ranges",
        b"age",
        b"allow",
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-location",
        b"content-range",
        b"content-security-policy",
        b"content-security-policy-report-only",
        b"content-type",
        b"cross-origin-embedder-policy",
        b"cross-origin-opener-policy",
        b"cross-origin-resource-policy",
        b"etag",
        b"expires",
        b"last-modified",
        b"location",
        b"permissions-policy",
        b"pragma",
        b"referrer-policy",
        b"retry-after",
        b"sec-websocket-accept",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
        b"set-cookie",
        b"vary",
        b"x-content-type-options",
        b"x-frame-options",
        b"x-xss-protection",
    }
)
"""They describe one response or restrict one page. Everything else is dropped, because new headers that reach further
(reports, origin trials, instructions to a proxy in front) are invented all the time."""


@dataclass(frozen=True, slots=True)
class JupyterPath:
    """A reservation's Jupyter and a path below it."""

    reservation_id: str
    subpath: str

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.reservation_id}/jupyter/"


def find_jupyter_path(path: str) -> JupyterPath | None:
    """None: not a path inside a Jupyter."""
    found = _PATH.fullmatch(path)
    if found is None or found[2] in API_PATHS:
        return None
    reservation_id = parse_whole_id(found[1])
    return None if reservation_id is None else JupyterPath(reservation_id, found[2])


def find_session_secret(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The session cookie. None if there are several: another site may have planted one of them."""
    found = list_session_secrets(headers)
    return found[0] if len(found) == 1 and 16 <= len(found[0]) <= 256 and found[0].isascii() else None


def list_session_secrets(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The values of all session cookies, valid or not."""
    return [value for name, value in _cookies(headers) if name == COOKIE_NAME]


def check_origin(method: str, headers: Headers, own_names: Collection[str], *, is_websocket: bool) -> None:
    """Requests that change something, and WebSockets, must come from our own pages. Raises Forbidden."""
    site = _single_header(headers, b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Forbidden("cross-site request")
    origin = _single_header(headers, b"origin")
    if origin is None:
        if is_websocket:
            raise Forbidden("a WebSocket to Jupyter requires an Origin header")
        return
    if method in _SAFE_METHODS and not is_websocket:
        return
    host = (_single_header(headers, b"host") or "").lower()
    if _origin_host(origin) not in {host, *(name.lower() for name in own_names)} - {""}:
        raise Forbidden(
            "cross-site request (or a reverse proxy does not forward Host: configure it, or set GPU_DEV_SERVER_NAMES to"
            " the public name)"
        )


def request_headers(headers: Headers, token: str) -> Headers:
    """Headers of a request as forwarded to Jupyter."""
    named = _named_in_connection(headers)
    forwarded = [(name, value) for name, value in headers if name not in _DROPPED_REQUEST_HEADERS and name not in named]
    others = [f"{name}={value}" for name, value in _cookies(headers) if name != COOKIE_NAME]
    if others:
        forwarded.append((b"cookie", "; ".join(others).encode("latin-1", "replace")))
    return [*forwarded, (b"authorization", f"token {token}".encode())]


def response_headers(headers: Headers, path: str) -> Headers:
    """Headers of Jupyter's response as returned to the browser. `path`: the path of this Jupyter."""
    named = _named_in_connection(headers)
    return [
        (name, value)
        for name, value in headers
        if name.lower() in _RETURNED_HEADERS - named and (name.lower() != b"set-cookie" or _is_confined_to(path, value))
    ]


def session_cookie(secret: str, target: JupyterPath, headers: Headers, seconds: int) -> str:
    """Limited to this Jupyter's path and to same-site requests. Secure, except for plain HTTP on a loopback address; a
    reverse proxy that terminates TLS counts as TLS."""
    is_tls = (_single_header(headers, b"x-forwarded-proto") or "http") != "http"
    secure = "" if _is_loopback_host(_single_header(headers, b"host") or "") and not is_tls else "; Secure"
    return f"{COOKIE_NAME}={secret}; Path={target.path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, is_pair, text = part.strip().partition("=")
                if is_pair:
                    pairs.append((key, text))
    return pairs


def _is_confined_to(path: str, set_cookie: bytes) -> bool:
    """Parsed as browsers do: a cookie without a name is sent as its value alone, which could read as name=value."""
    pair, *attributes = set_cookie.decode("latin-1").split(";")
    name, is_pair, _ = pair.partition("=")
    if not is_pair or name.strip() in ("", COOKIE_NAME):
        return False
    for attribute in attributes:
        key, _, value = (word.strip() for word in attribute.partition("="))
        reaches_out = key.lower() == "domain" or (key.lower() == "path" and not f"{value}/".startswith(path))
        if value and reaches_out:
            return False
    return True


def _named_in_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(word.strip().lower() for value in values for word in value.split(b","))


def _single_header(headers: Headers, wanted: bytes) -> str | None:
    """Repeated headers are not trusted: they count as a foreign value."""
    found = [value.decode("latin-1") for name, value in headers if name == wanted]
    return None if not found else found[0] if len(found) == 1 else "several"


def _origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_loopback_host(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
