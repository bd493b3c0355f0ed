"""Which tokens count as the issuer's: those signed with its own keys, in a way those keys are for, and no others."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from gpudev.adapters.oidc.provider import token_key_id, verify_signature
from gpudev.domain.errors import Unauthenticated
from support.access.oidc_issuer import Stranger, TestIssuer, public_jwk
from support.clock import ManualClock


@pytest.fixture
def key(issuer: TestIssuer) -> dict[str, Any]:
    return public_jwk("first", issuer.keys["first"])


def encoded(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def refused(token: str, key: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        token_key_id(token)
        verify_signature(token, key)


def test_what_the_issuer_signed_is_read(issuer: TestIssuer, clock: ManualClock, key: dict[str, Any]) -> None:
    token = issuer.token(clock, extra="word")
    assert token_key_id(token) == "first"
    assert verify_signature(token, key)["extra"] == "word"


def test_other_kinds_of_asymmetric_keys_count_too() -> None:
    for private, algorithm in ((ec.generate_private_key(ec.SECP256R1()), "ES256"), (_ed25519(), "EdDSA")):
        made = jwt.get_algorithm_by_name(algorithm).to_jwk(private.public_key(), as_dict=True)  # type: ignore[attr-defined]
        token = jwt.encode({"sub": "1"}, private, algorithm, {"kid": "k"})
        assert verify_signature(token, {**made, "kid": "k"}) == {"sub": "1"}


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", ""])
def test_a_token_without_a_signature_is_nobodys(
    algorithm: str, issuer: TestIssuer, clock: ManualClock, key: dict[str, Any]
) -> None:
    header, claims = encoded({"alg": algorithm, "kid": "first", "typ": "JWT"}), encoded(issuer.claims(clock))
    refused(f"{header}.{claims}.", key)
    signature = issuer.token(clock).rpartition(".")[2]
    refused(f"{header}.{claims}.{signature}", key)


@pytest.mark.parametrize("form", ["pem", "jwk", "n"])
def test_the_public_key_is_no_shared_secret(
    form: str, issuer: TestIssuer, clock: ManualClock, key: dict[str, Any]
) -> None:
    secret = {"pem": issuer.public_pem(), "jwk": json.dumps(key).encode(), "n": key["n"].encode()}[form]
    signed = f"{encoded({'alg': 'HS256', 'kid': 'first'})}.{encoded(issuer.claims(clock))}"
    signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    refused(f"{signed}.{encoded(signature)}", key)
    symmetric = {"kty": "oct", "k": encoded(secret), "kid": "first"}
    refused(f"{signed}.{encoded(signature)}", symmetric)


def test_a_strangers_signature_is_not_the_issuers(
    issuer: TestIssuer, clock: ManualClock, key: dict[str, Any], stranger: Stranger
) -> None:
    refused(jwt.encode(issuer.claims(clock), stranger.rsa, "RS256", {"kid": "first"}), key)
    refused(jwt.encode(issuer.claims(clock), stranger.ec, "ES256", {"kid": "first"}), key)


def test_a_key_in_the_header_or_an_address_of_one_is_not_looked_at(
    issuer: TestIssuer, clock: ManualClock, key: dict[str, Any], stranger: Stranger
) -> None:
    brought = {
        "jwk": public_jwk("first", stranger.rsa),
        "jku": f"{issuer.address}/evil",
        "x5u": f"{issuer.address}/evil",
        "x5c": ["MIIB"],
    }
    refused(jwt.encode(issuer.claims(clock), stranger.rsa, "RS256", {"kid": "first", **brought}), key)
    assert verify_signature(issuer.token(clock, headers=brought), key)
    assert issuer.asked == []


def test_any_changed_letter_breaks_the_signature(issuer: TestIssuer, clock: ManualClock, key: dict[str, Any]) -> None:
    header, claims, signature = issuer.token(clock).split(".")
    for place in range(0, len(claims), 7):
        letter = "A" if claims[place] != "A" else "B"
        refused(f"{header}.{claims[:place]}{letter}{claims[place + 1 :]}.{signature}", key)
    other = encoded({**issuer.claims(clock), "sub": "root"})
    refused(f"{header}.{other}.{signature}", key)


@pytest.mark.parametrize(
    "headers",
    [
        {"typ": "at+jwt"},
        {"typ": "JWE"},
        {"typ": "logout+jwt"},
        {"crit": ["b64"], "b64": False},
        {"crit": []},
    ],
)
def test_tokens_of_other_kinds_are_no_id_tokens(
    headers: dict[str, Any], issuer: TestIssuer, clock: ManualClock, key: dict[str, Any]
) -> None:
    header = encoded({"alg": "RS256", "kid": "first", **headers})
    signed = f"{header}.{encoded(issuer.claims(clock))}"
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), issuer.keys["first"])
    refused(f"{signed}.{encoded(signature)}", key)


@pytest.mark.parametrize("kid", [None, "", 7, "x" * 300, ["first"]])
def test_a_token_says_by_which_key_it_is_signed(kid: Any, issuer: TestIssuer, clock: ManualClock) -> None:
    header = {"alg": "RS256"} | ({} if kid is None else {"kid": kid})
    with pytest.raises(Unauthenticated):
        token_key_id(f"{encoded(header)}.{encoded(issuer.claims(clock))}.{encoded(b'x')}")


def test_a_key_is_only_for_the_algorithms_of_its_kind(
    issuer: TestIssuer, clock: ManualClock, key: dict[str, Any]
) -> None:
    claims, private = issuer.claims(clock), issuer.keys["first"]
    for algorithm in ("RS512", "PS256"):
        refused(jwt.encode(claims, private, algorithm, {"kid": "first"}), key)  # the key says that it is for RS256
        unbound = {name: value for name, value in key.items() if name != "alg"}
        assert verify_signature(jwt.encode(claims, private, algorithm, {"kid": "first"}), unbound)
    refused(issuer.token(clock), {**key, "alg": "none"})
    refused(issuer.token(clock), {**key, "kty": "EC"})
    refused(issuer.token(clock), {"kid": "first"})
    refused(issuer.token(clock), {**key, "n": "!!"})


def test_a_key_that_can_be_broken_is_not_trusted(issuer: TestIssuer, clock: ManualClock) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = jwt.encode(issuer.claims(clock), weak, "RS256", {"kid": "first"})
    refused(token, public_jwk("first", weak))


@pytest.mark.parametrize(
    "noise",
    ["", ".", "..", "a.b.c", "....", "e30.e30.e30", "\x00.\x00.\x00", "é.é.é", "x" * 40_000, "[" * 5000 + ".a.b"],
)
def test_noise_is_refused_in_words(noise: str, key: dict[str, Any]) -> None:
    refused(noise, key)
    refused(f"{encoded(b'[' * 9000)}.{encoded({})}.{encoded(b'x')}", key)


def _ed25519() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()
