"""The issuer's keys: fetched once, again when they change, never more often than is good, and never from a stranger."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from gpudev.adapters.oidc import issuer_keys as issuer_module
from gpudev.adapters.oidc.issuer_keys import IssuerKeys
from gpudev.domain.errors import Unauthenticated, Unavailable
from support.access.oidc_issuer import KEYS, METADATA, Answer, TestIssuer, dripping, public_jwk


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
async def keys(issuer: TestIssuer, seconds: Seconds) -> AsyncIterator[IssuerKeys]:
    made = IssuerKeys(issuer.address, seconds=20.0, monotonic=seconds)
    yield made
    await made.close()


async def test_keys_are_fetched_once_for_many(issuer: TestIssuer, keys: IssuerKeys) -> None:
    found = await asyncio.gather(*(keys.get_key("first") for _ in range(50)))
    assert {key["kid"] for key in found} == {"first"}
    assert issuer.asked == [METADATA, KEYS]


async def test_a_new_key_is_found_without_waiting_for_the_hour(
    issuer: TestIssuer, keys: IssuerKeys, seconds: Seconds
) -> None:
    await keys.get_key("first")
    issuer.rotate()
    seconds.now += issuer_module.UNKNOWN_KEY_PAUSE_SECONDS
    assert (await keys.get_key("second"))["kid"] == "second"
    with pytest.raises(Unauthenticated):
        await keys.get_key("first")


async def test_a_key_that_was_taken_back_ends_within_the_hour(
    issuer: TestIssuer, keys: IssuerKeys, seconds: Seconds
) -> None:
    await keys.get_key("first")
    issuer.rotate()
    seconds.now += issuer_module.KEY_CACHE_SECONDS
    with pytest.raises(Unauthenticated):
        await keys.get_key("first")


async def test_a_flood_of_unknown_keys_asks_the_issuer_once_in_a_while(
    issuer: TestIssuer, keys: IssuerKeys, seconds: Seconds
) -> None:
    await keys.get_key("first")
    seconds.now += issuer_module.UNKNOWN_KEY_PAUSE_SECONDS
    before = len(issuer.asked)

    async def try_one(number: int) -> None:
        with pytest.raises(Unauthenticated):
            await keys.get_key(f"unknown-{number}")

    await asyncio.gather(*(try_one(number) for number in range(200)))
    for number in range(200):
        await try_one(number)
    assert len(issuer.asked) == before + 2, "one look at the metadata, one at the keys"
    assert await keys.get_key("first")


async def test_an_issuer_that_is_down_is_not_asked_by_everybody(
    issuer: TestIssuer, keys: IssuerKeys, seconds: Seconds
) -> None:
    issuer.instead[METADATA] = lambda: (500, "text/plain", b"")
    for _ in range(20):
        with pytest.raises(Unavailable):
            await keys.get_key("first")
    assert issuer.asked == [METADATA]
    issuer.instead.clear()
    seconds.now += issuer_module.FAILURE_PAUSE_SECONDS
    assert await keys.get_key("first")


async def test_an_issuer_that_fails_for_a_while_does_not_end_what_is_known(
    issuer: TestIssuer, keys: IssuerKeys, seconds: Seconds
) -> None:
    await keys.get_key("first")
    issuer.instead[METADATA] = lambda: (500, "text/plain", b"")
    seconds.now += issuer_module.UNKNOWN_KEY_PAUSE_SECONDS
    with pytest.raises(Unauthenticated):
        await keys.get_key("unknown")
    assert await keys.get_key("first")


@pytest.mark.parametrize("path", [METADATA, KEYS])
@pytest.mark.parametrize(
    "answer",
    [
        lambda: (200, "text/html", b"<html>Please log in to the Wi-Fi"),
        lambda: (200, "application/json", b"[]"),
        lambda: (200, "application/json", b'{"keys": 7}'),
        lambda: (200, "application/json", b"\xff\xfe"),
        lambda: (200, "application/json", b"[" * 100_000),
        lambda: (200, "application/json", b'{"keys": "' + b"x" * 600_000 + b'"}'),
        lambda: (302, "text/plain", b"http://127.0.0.1:1/elsewhere"),
        lambda: (404, "text/plain", b""),
        lambda: (503, "text/plain", b""),
    ],
)
async def test_what_is_no_answer_of_an_issuer_gives_no_keys(
    path: str, answer: Callable[[], Answer], issuer: TestIssuer, keys: IssuerKeys
) -> None:
    issuer.instead[path] = answer
    with pytest.raises(Unavailable):
        await keys.get_key("first")


async def test_redirects_are_not_followed_even_to_the_truth(issuer: TestIssuer, keys: IssuerKeys) -> None:
    issuer.instead[METADATA] = lambda: (302, "text/plain", f"{issuer.address}/moved".encode())
    with pytest.raises(Unavailable):
        await keys.get_key("first")
    assert issuer.asked == [METADATA]


async def test_an_issuer_that_drips_is_given_up(issuer: TestIssuer) -> None:
    keys = IssuerKeys(issuer.address, seconds=0.2)
    issuer.instead[KEYS] = dripping(1.0)
    with pytest.raises(Unavailable, match="does not answer"):
        await keys.get_key("first")
    await keys.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"issuer": "https://elsewhere.example"}, "another issuer"),
        ({"issuer": "{here}/"}, "another issuer"),
        ({"issuer": "{here}"}, "no valid jwks_uri"),
        ({"issuer": "{here}", "jwks_uri": "http://keys.example.org/keys"}, "no valid jwks_uri"),
        ({"issuer": "{here}", "jwks_uri": "file:///etc/passwd"}, "no valid jwks_uri"),
        ({"issuer": "{here}", "jwks_uri": "https://"}, "no valid jwks_uri"),
        ({"issuer": "{here}", "jwks_uri": "http://[::1"}, "no valid jwks_uri"),
        ({"issuer": "{here}", "jwks_uri": 7}, "no valid jwks_uri"),
    ],
)
async def test_keys_come_from_the_issuer_and_by_a_safe_way(
    said: dict[str, object], why: str, issuer: TestIssuer, keys: IssuerKeys
) -> None:
    import json

    filled = {n: v.replace("{here}", issuer.address) if isinstance(v, str) else v for n, v in said.items()}
    issuer.instead[METADATA] = lambda: (200, "application/json", json.dumps(filled).encode())
    with pytest.raises(Unavailable, match=why):
        await keys.get_key("first")


async def test_keys_that_are_not_for_signing_are_none(issuer: TestIssuer, keys: IssuerKeys) -> None:
    import json

    listed = [
        public_jwk("first", issuer.keys["first"], use="enc"),
        public_jwk(7, issuer.keys["first"]),  # type: ignore[arg-type]
        "first",
        None,
    ]
    issuer.instead[KEYS] = lambda: (200, "application/json", json.dumps({"keys": listed}).encode())
    with pytest.raises(Unauthenticated):
        await keys.get_key("first")
