"""What the client believes of an issuer, and which way of logging in it chooses."""

import base64
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable

import pytest

from gpudev.cli.commands.access import oidc_browser, oidc_device, oidc_login
from gpudev.cli.commands.access.oidc_issuer import (
    LoginRejected,
    OidcClient,
    OidcEndpoints,
    OidcTokens,
    check_address,
    discover,
)
from gpudev.sdk.errors import ClientError
from support.access.oidc_issuer import METADATA, TestIssuer

CLIENT = OidcClient("https://id.example.org", "gpu-dev")


def test_the_challenge_is_the_one_of_the_specification() -> None:
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"  # RFC 7636, appendix B
    assert oidc_browser.challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize(
    "env",
    [
        {"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22", "DISPLAY": ":0"},
        {"SSH_TTY": "/dev/pts/1"},
        {},
    ],
)
def test_without_a_screen_another_device_is_used(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert oidc_login.has_no_browser(env)
    assert not oidc_login.has_no_browser({**env, "BROWSER": "firefox"})


def test_with_a_screen_the_browser_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert not oidc_login.has_no_browser({"DISPLAY": ":0"})
    assert not oidc_login.has_no_browser({"WAYLAND_DISPLAY": "wayland-0"})
    monkeypatch.setattr("sys.platform", "darwin")
    assert not oidc_login.has_no_browser({})


def test_a_token_that_answers_another_login_is_refused() -> None:
    def token(claims: object) -> str:
        return f"x.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.x"

    oidc_login.check_nonce(token({"nonce": "mine"}), "mine")
    for bad in (token({"nonce": "other"}), token({}), token([]), "x", "x.!.x", "x.e30.x"):
        with pytest.raises(ClientError, match="another login"):
            oidc_login.check_nonce(bad, "mine")


@pytest.mark.parametrize(
    "address",
    [None, 7, "", "http://id.example.org/token", "ftp://id.example.org", "https://", "https://u:p@id.example.org",
     "https://id.example.org/\n", "https://id.example.org/a b", "http://[::1", "http://127.0.0.1.example.org/"],
)  # fmt: skip
def test_an_issuer_is_only_spoken_to_by_a_safe_way(address: object) -> None:
    with pytest.raises(ClientError, match="secure address"):
        check_address(address, "its tokens")


def test_an_issuer_that_says_to_be_another_is_not_trusted(issuer: TestIssuer) -> None:
    said = {"issuer": "https://elsewhere.example", "authorization_endpoint": "https://x", "token_endpoint": "https://x"}
    for body in (json.dumps(said).encode(), b"<html>", b"[]"):
        issuer.instead[METADATA] = lambda body=body: (200, "application/json", body)  # type: ignore[misc]
        with pytest.raises(ClientError, match="names another issuer"):
            discover(issuer.address)
    issuer.instead[METADATA] = lambda: (302, "text/plain", issuer.address.encode())
    with pytest.raises(ClientError, match="names another issuer"):
        discover(issuer.address)


def answering(query: Callable[[dict[str, str]], dict[str, str]]) -> Callable[[str], bool]:
    """A browser that is sent back at once, with this."""

    def open_browser(address: str) -> bool:
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))
        back = f"{asked['redirect_uri']}?{urllib.parse.urlencode(query(asked))}"
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(back, timeout=10).close()
        return True

    return open_browser


def test_what_the_browser_brings_must_be_this_issuers(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = OidcEndpoints("https://id.example.org/auth?tenant=1", "https://id.example.org/token", None)
    asked: list[dict[str, str]] = []

    def denied(question: dict[str, str]) -> dict[str, str]:
        asked.append(question)
        return {"state": question["state"], "error": "access_denied"}

    monkeypatch.setattr("webbrowser.open", answering(denied))
    with pytest.raises(LoginRejected, match="access_denied"):
        oidc_browser.log_in(CLIENT, endpoints, "api")
    (question,) = asked
    assert question["code_challenge_method"] == "S256"
    assert question["redirect_uri"].startswith("http://127.0.0.1:")
    assert len({question["state"], question["nonce"], question["code_challenge"]}) == 3
    assert question["tenant"] == "1"
    mixed_up = {"code": "x", "iss": "https://evil.example"}
    monkeypatch.setattr("webbrowser.open", answering(lambda question: {"state": question["state"], **mixed_up}))
    with pytest.raises(ClientError, match="not come from the issuer"):
        oidc_browser.log_in(CLIENT, endpoints, "api")
    _join_browsers()


def test_nobody_is_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _address: True)
    monkeypatch.setattr(oidc_browser, "PATIENCE_SECONDS", 0.05)
    with pytest.raises(ClientError, match="timed out"):
        oidc_browser.log_in(
            CLIENT, OidcEndpoints("https://id.example.org/auth", "https://id.example.org/token", None), "api"
        )


class DeviceIssuer:
    """Answers polls with these codes in turn, then with tokens."""

    def __init__(self, *codes: str) -> None:
        self.codes = list(codes)
        self.pauses: list[float] = []

    def post(self, endpoint: str, fields: dict[str, str]) -> dict[str, object]:
        return {"device_code": "d", "user_code": "ABCD", "verification_uri": "https://id.example.org", "interval": 5}

    def ask(self, endpoint: str, client: OidcClient, fields: dict[str, str]) -> OidcTokens:
        if self.codes:
            raise LoginRejected(code := self.codes.pop(0), code)
        return OidcTokens("id", "refresh")

    def log_in(self, monkeypatch: pytest.MonkeyPatch) -> OidcTokens:
        monkeypatch.setattr(oidc_device, "post", self.post)
        monkeypatch.setattr(oidc_device, "ask_for_tokens", self.ask)
        endpoints = OidcEndpoints("https://x", "https://x", "https://id.example.org/device")
        return oidc_device.log_in(CLIENT, endpoints, self.pauses.append)


def test_a_device_login_waits_as_the_issuer_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = DeviceIssuer("authorization_pending", "slow_down", "authorization_pending")
    assert issuer.log_in(monkeypatch) == OidcTokens("id", "refresh")
    assert issuer.pauses == [5, 5, 10, 10]


@pytest.mark.parametrize(("code", "why"), [("access_denied", "denied"), ("expired_token", "time"), ("other", "other")])
def test_a_device_login_that_fails_says_why(code: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match=why):
        DeviceIssuer(code).log_in(monkeypatch)


def test_an_issuer_without_device_logins_says_what_to_do() -> None:
    with pytest.raises(ClientError) as refusal:
        oidc_device.log_in(CLIENT, OidcEndpoints("https://x", "https://x", None))
    assert "--browser" in refusal.value.next_step


def _join_browsers() -> None:
    for thread in threading.enumerate():
        if thread.daemon and thread.name.startswith("Thread-") and thread is not threading.current_thread():
            thread.join(10)
