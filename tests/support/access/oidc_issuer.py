"""An issuer in this process: real keys, real signatures, a real HTTP server, and whatever a test makes it say."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from support.access.dex import CLIENT
from support.clock import ManualClock

_FIRST = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_SECOND = rsa.generate_private_key(public_exponent=65537, key_size=2048)
METADATA, KEYS = "/.well-known/openid-configuration", "/keys"
Answer = tuple[int, str, bytes]


class TestIssuer:
    __test__ = False

    def __init__(self) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey] = {"first": _FIRST}
        self.asked: list[str] = []
        self.instead: dict[str, Callable[[], Answer]] = {}
        """By path: what is answered in place of the truth."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                status, kind, body = issuer.answer(self.path)
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    if 300 <= status < 400:
                        self.send_header("Location", body.decode())
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # who asked has had enough

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> Answer:
        if path in self.instead:
            return self.instead[path]()
        if path == METADATA:
            return _json({"issuer": self.address, "jwks_uri": f"{self.address}{KEYS}"})
        if path == KEYS:
            return _json({"keys": [public_jwk(name, key) for name, key in self.keys.items()]})
        return 404, "text/plain", b"no"

    def rotate(self) -> None:
        self.keys = {"second": _SECOND}

    def claims(self, clock: ManualClock, **changes: Any) -> dict[str, Any]:
        now = int(clock.now().timestamp())
        said = {
            "iss": self.address,
            "aud": CLIENT,
            "sub": "0123-ada",
            "exp": now + 600,
            "iat": now,
            "email": "ada@example.org",
            "email_verified": True,
        }
        return {name: value for name, value in (said | changes).items() if value is not ...}

    def token(
        self, clock: ManualClock, *, kid: str = "first", headers: dict[str, Any] | None = None, **changes: Any
    ) -> str:
        key = self.keys.get(kid, _FIRST)
        return jwt.encode(self.claims(clock, **changes), key, "RS256", {"kid": kid, **(headers or {})})

    def public_pem(self) -> bytes:
        return self.keys["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class Stranger:
    """Somebody with keys of their own."""

    def __init__(self) -> None:
        self.rsa = _SECOND
        self.ec = ec.generate_private_key(ec.SECP256R1())


def public_jwk(name: str, key: rsa.RSAPrivateKey, **changes: Any) -> dict[str, Any]:
    jwk = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "kid": name, "use": "sig", "alg": "RS256", **changes}


def dripping(seconds: float) -> Callable[[], Answer]:
    def answer() -> Answer:
        time.sleep(seconds)
        return 200, "application/json", b"{}"

    return answer


def _json(value: object) -> Answer:
    return 200, "application/json", json.dumps(value).encode()
