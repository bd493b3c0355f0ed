"""OIDC login with the browser on this machine: authorization code with PKCE.

Other local processes can reach the callback port, but only a response with our state is accepted, and its code is
useless without the verifier, which only the issuer gets.
"""

import base64
import hashlib
import secrets
import threading
import time
import webbrowser
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from gpudev.cli import output
from gpudev.cli.commands.access.oidc_issuer import LoginRejected, OidcClient, OidcEndpoints, OidcTokens, ask_for_tokens
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.domain.access.login import bind_nonce

PATIENCE_SECONDS = 300.0
_PATH = "/callback"
_ONE_REQUEST_SECONDS = 10.0
_PAGE = (
    "<!doctype html><meta charset=utf-8><title>gpu-dev</title>"
    "<body style='font-family:sans-serif;margin:4em'><h1>{}</h1><p>You can close this window."
)


class AuthorizationResponse(NamedTuple):
    code: str | None
    error: str | None
    issuer: str | None


def log_in(client: OidcClient, endpoints: OidcEndpoints, server: str) -> tuple[OidcTokens, str]:
    """The tokens, and the nonce of the ID token, which binds them to this server."""
    state, random, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    nonce = bind_nonce(random, server)
    with _CallbackServer(state) as callback:
        query = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": callback.address,
            "scope": " ".join(client.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        address = _with_query(endpoints.authorization, query)
        output.write_note(f"Log in with your browser; if it does not open, go to\n  {address}")
        # In a thread: some browsers block until they exit.
        threading.Thread(target=_open_browser, args=(address,), daemon=True).start()
        response = callback.wait()
        if response.error is not None:
            raise LoginRejected(response.error, f"the issuer rejected the login ({output.clean(response.error)[:200]})")
        if response.code is None or response.issuer not in (None, client.issuer):
            raise CliError(ExitCode.AUTH, "the login response does not come from the issuer", "Try again")
        fields = {
            "grant_type": "authorization_code",
            "code": response.code,
            "redirect_uri": callback.address,
            "code_verifier": verifier,
        }
        return ask_for_tokens(endpoints.token, client, fields), nonce


def challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _with_query(address: str, query: dict[str, str]) -> str:
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(query)}"


def _open_browser(address: str) -> None:
    try:
        webbrowser.open(address)
    except (OSError, webbrowser.Error):
        return  # the address was printed


class _CallbackServer:
    """A local port that the browser is redirected to."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._server = HTTPServer(("127.0.0.1", 0), self._handler())
        self._response: AuthorizationResponse | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{_PATH}"

    def __enter__(self) -> "_CallbackServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    def wait(self) -> AuthorizationResponse:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._response is None:
            self._server.timeout = deadline - time.monotonic()
            if self._server.timeout <= 0:
                raise CliError(
                    ExitCode.AUTH, "timed out waiting for the login in the browser", "Try again: `gpu-dev login`"
                )
            self._server.handle_request()
        return self._response

    def accept_callback(self, path: str) -> bool:
        """Whether this request is the expected response."""
        parts = urlsplit(path)
        given = parse_qs(parts.query, max_num_fields=20)
        if parts.path != _PATH or not secrets.compare_digest(_single_value(given, "state") or "", self._state):
            return False
        self._response = AuthorizationResponse(
            _single_value(given, "code"), _single_value(given, "error"), _single_value(given, "iss")
        )
        return True

    def _handler(callback) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            timeout = _ONE_REQUEST_SECONDS

            def do_GET(self) -> None:
                try:
                    accepted = callback.accept_callback(self.path)
                except ValueError:
                    accepted = False
                logged_in = accepted and callback._response is not None and callback._response.code is not None
                text = (
                    "You are logged in." if logged_in else "Not logged in." if accepted else "This is not your login."
                )
                page = _PAGE.format(text).encode()
                self.send_response(200 if accepted else 400)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(page)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                """Silent: the default would print the code."""

        return Handler


def _single_value(given: dict[str, list[str]], name: str) -> str | None:
    """The value, if given exactly once."""
    values = given.get(name, [])
    return values[0] if len(values) == 1 and values[0].isascii() else None
