"""What a request for Jupyter must look like, what of it is passed on, and what of an answer is: pure.

Jupyter runs in a dev server, where its owner and whoever got in there can do as they like, and browsers think that what
it says is ours. So nothing that opens a way through us goes in, and nothing comes out that reaches beyond its path.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from gpudev.domain.errors import Forbidden
from gpudev.workflows.sessions.jupyter_access import whole_id

COOKIE = "gpudev_jupyter"
ENTER = "enter"
OF_THE_API = frozenset({"enable", "disable", "link"})
"""Below the same path, and the API's own."""
Headers = list[tuple[bytes, bytes]]
_PATH = re.compile(r"/v1/jobs/([0-9a-fA-F-]{32,36})/jupyter/(.*)", re.DOTALL)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = frozenset({*_SAFE, "POST", "PUT", "PATCH", "DELETE"})
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
_NOT_IN = _HOP_BY_HOP | {b"authorization", b"cookie", b"x-forwarded-for", b"forwarded", b"x-real-ip"}
_NOT_OUT = _HOP_BY_HOP | {
    b"service-worker-allowed",
    b"clear-site-data",
    b"strict-transport-security",
    b"public-key-pins",
    b"alt-svc",
    b"www-authenticate",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Which Jupyter, and what there."""

    reservation_id: str
    rest: str

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.reservation_id}/jupyter/"


def place_of(path: str) -> Place | None:
    """None: this is not about the inside of a Jupyter."""
    found = _PATH.fullmatch(path)
    if found is None or found[2] in OF_THE_API:
        return None
    reservation_id = whole_id(found[1])
    return None if reservation_id is None else Place(reservation_id, found[2])


def secret_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The browser's own. Of several somebody else has planted all but one, and nobody can tell which: none counts."""
    found = secrets_of(headers)
    return found[0] if len(found) == 1 and 16 <= len(found[0]) <= 256 and found[0].isascii() else None


def secrets_of(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Whatever is given for one."""
    return [value for name, value in _cookies(headers) if name == COOKIE]


def check_origin(method: str, headers: Headers, own_names: Collection[str], *, is_websocket: bool) -> None:
    """That it is a page of ours that asks, where a page asks for more than to be shown something. Raises Forbidden."""
    site = _one(headers, b"sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Forbidden("a page from elsewhere asked for this")
    origin = _one(headers, b"origin")
    if origin is None:
        if is_websocket:
            raise Forbidden("a WebSocket to Jupyter must say which page opens it (Origin)")
        return
    if method in _SAFE and not is_websocket:
        return
    host = (_one(headers, b"host") or "").lower()
    if _host_of(origin) not in {host, *(name.lower() for name in own_names)} - {""}:
        raise Forbidden(
            "a page from elsewhere asked for this (or what is before this server does not tell it the name that people"
            " use: it must pass Host on, or GPU_DEV_SERVER_NAMES must say it)"
        )


def inwards(headers: Headers, token: str) -> Headers:
    """What Jupyter is told."""
    named = _named_in_connection(headers)
    kept = [(name, value) for name, value in headers if name not in _NOT_IN and name not in named]
    others = [f"{name}={value}" for name, value in _cookies(headers) if name != COOKIE]
    if others:
        kept.append((b"cookie", "; ".join(others).encode("latin-1", "replace")))
    return [*kept, (b"authorization", f"token {token}".encode())]


def outwards(headers: Headers, path: str) -> Headers:
    """What a browser is told by a Jupyter that is below that path."""
    named = _named_in_connection(headers)
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in _NOT_OUT | named and (name.lower() != b"set-cookie" or _stays_below(path, value))
    ]


def cookie(secret: str, place: Place, headers: Headers, seconds: int) -> str:
    """Sent only to this Jupyter, and by no other site's doing. Without TLS it is only where nothing leaves the machine:
    not behind a proxy that ended TLS, whatever name of ours it uses."""
    came_by_tls = (_one(headers, b"x-forwarded-proto") or "http") != "http"
    secure = "" if _is_this_machine(_one(headers, b"host") or "") and not came_by_tls else "; Secure"
    return f"{COOKIE}={secret}; Path={place.path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, is_pair, text = part.strip().partition("=")
                if is_pair:
                    pairs.append((key, text))
    return pairs


def _stays_below(path: str, set_cookie: bytes) -> bool:
    """As browsers read it, whatever its grammar: one without a name is sent as if its value were name and value."""
    pair, *attributes = set_cookie.decode("latin-1").split(";")
    name, is_pair, _ = pair.partition("=")
    if not is_pair or name.strip() in ("", COOKIE):
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


def _one(headers: Headers, wanted: bytes) -> str | None:
    """Several say nothing that could be trusted: as if it were elsewhere."""
    found = [value.decode("latin-1") for name, value in headers if name == wanted]
    return None if not found else found[0] if len(found) == 1 else "several"


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_this_machine(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
