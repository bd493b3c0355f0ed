"""A server that people were lured to, and which passes on what they bring: an ID token is for where they logged in."""

from collections.abc import Iterator

import pytest

from gpudev.adapters.oidc.issuer_keys import IssuerKeys
from gpudev.adapters.oidc.provider import OidcProvider
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.login import bind_nonce
from gpudev.domain.errors import Unauthenticated
from gpudev.ports.access import IdToken
from gpudev.settings import OidcSettings
from support.access.oidc_issuer import TestIssuer
from support.clock import ManualClock

RANDOM = "r" * 43
OURS = ("gpu.example.org", "10.0.0.7:8443")


@pytest.fixture
def issuer() -> Iterator[TestIssuer]:
    made = TestIssuer()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("server", "is_let_in"),
    [
        ("gpu.example.org", True),
        ("10.0.0.7:8443", True),
        ("evil.example", False),
        ("gpu.example.org:8443", False),
        ("10.0.0.7", False),
        ("gpu.example.org.", False),
    ],
)
async def test_a_token_got_for_another_server_is_no_login_here(
    issuer: TestIssuer, stores: Stores, clock: ManualClock, server: str, is_let_in: bool
) -> None:
    """Whatever nonce whoever brings it says that they sent."""
    keys = IssuerKeys(issuer.address, seconds=5)
    settings = OidcSettings(issuer=issuer.address, client_id="gpu-dev")
    provider = OidcProvider(settings, keys, stores.used_tokens, clock, OURS)
    token = issuer.token(clock, nonce=bind_nonce(RANDOM, server), aud="gpu-dev")
    try:
        if is_let_in:
            assert (await provider.identify(IdToken(token, None))).username == "ada@example.org"
            return
        for nonce in (None, bind_nonce(RANDOM, server)):
            with pytest.raises(Unauthenticated, match="another server"):
                await provider.identify(IdToken(token, nonce))
    finally:
        await keys.close()


async def test_a_token_without_a_nonce_as_devices_get_it_names_no_server(
    issuer: TestIssuer, stores: Stores, clock: ManualClock
) -> None:
    keys = IssuerKeys(issuer.address, seconds=5)
    provider = OidcProvider(
        OidcSettings(issuer=issuer.address, client_id="gpu-dev"), keys, stores.used_tokens, clock, OURS
    )
    try:
        assert await provider.identify(IdToken(issuer.token(clock, aud="gpu-dev"), None))
    finally:
        await keys.close()
