"""Login with an OIDC ID token: checks its signature and claims, and that it is used once.

Only asymmetric signatures are accepted, and a key only for the algorithms of its own type. Of a token's header only the
algorithm and the key's name are read, so no header can supply a key or a place to fetch one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gpudev.adapters.oidc.claims import CLOCK_SKEW, check_claims, person_from_claims
from gpudev.adapters.oidc.issuer_keys import IssuerKeys
from gpudev.domain.access.login import names_another_server
from gpudev.domain.errors import Unauthenticated
from gpudev.ports.access import IdToken, Person, UsedTokens
from gpudev.ports.clock import Clock
from gpudev.settings import OidcSettings

_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
_ALLOWED_ALGORITHMS = frozenset(name for names in _ALGORITHMS.values() for name in names)
_MAX_TOKEN_LENGTH = 32 * 1024
_MAX_KEY_ID_LENGTH = 256
_MIN_RSA_BITS = 2048
_INVALID_TOKEN = "invalid ID token"


def token_key_id(token: str) -> str:
    """The issuer's key that the token claims to be signed with. Raises Unauthenticated."""
    header = _token_header(token)
    name = header.get("kid")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_KEY_ID_LENGTH:
        raise Unauthenticated("the ID token does not name its signing key")
    return name


def verify_signature(token: str, key: Mapping[str, Any]) -> dict[str, Any]:
    """The token's claims, if its signature is this key's. Raises Unauthenticated."""
    algorithm = _token_header(token)["alg"]
    if algorithm not in _ALGORITHMS.get(str(key.get("kty")), ()) or key.get("alg", algorithm) != algorithm:
        raise Unauthenticated("the ID token's algorithm does not fit its key")
    try:
        public = jwt.PyJWK(dict(key), algorithm)
        if isinstance(public.key, RSAPublicKey) and public.key.key_size < _MIN_RSA_BITS:
            raise Unauthenticated("the issuer's key is too short to be trusted")
        # Only the signature: `claims` checks times and names by our own rules, with our own clock.
        signed = jwt.PyJWS().decode_complete(token, public, algorithms=[algorithm])["payload"]
        claims = json.loads(signed)
    except jwt.PyJWTError as error:
        raise Unauthenticated("the ID token's signature is not the issuer's") from error
    except (ValueError, RecursionError) as error:
        raise Unauthenticated(_INVALID_TOKEN) from error
    if not isinstance(claims, dict):
        raise Unauthenticated(_INVALID_TOKEN)
    return claims


def _token_header(token: str) -> dict[str, Any]:
    if len(token) > _MAX_TOKEN_LENGTH or not token.isascii() or token.count(".") != 2:
        raise Unauthenticated(_INVALID_TOKEN)
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError) as error:
        raise Unauthenticated(_INVALID_TOKEN) from error
    if header.get("alg") not in _ALLOWED_ALGORITHMS:
        raise Unauthenticated("the ID token's signature algorithm is not accepted")
    # An access token may be a JWT too; "crit" requires extensions that we do not support.
    if str(header.get("typ", "JWT")).upper() != "JWT" or "crit" in header:
        raise Unauthenticated("the token is not an ID token")
    return header


class OidcProvider:
    """An IdentityProvider. Its proof is an ID token, which can be used once."""

    def __init__(
        self,
        settings: OidcSettings,
        issuer: IssuerKeys,
        used: UsedTokens,
        clock: Clock,
        server_names: Sequence[str] = (),
    ) -> None:
        """`server_names`: the names under which people reach us. Empty: a token for another server is not noticed."""
        self._settings = settings
        self._server_names = server_names
        self._issuer = issuer
        self._used_tokens = used
        self._clock = clock

    async def identify(self, proof: IdToken) -> Person:
        now = self._clock.now()
        claims = verify_signature(proof.token, await self._issuer.get_key(token_key_id(proof.token)))
        expires_at = check_claims(claims, self._settings, now, proof.nonce)
        if self._server_names and names_another_server(claims.get("nonce"), self._server_names):
            raise Unauthenticated("the ID token is for a login to another server")
        person = person_from_claims(claims, self._settings)
        # Digest without the signature, because one signature can be encoded in more than one form.
        digest = hashlib.sha256(proof.token.rpartition(".")[0].encode()).digest()
        if not await self._used_tokens.use_token(digest, expires_at + CLOCK_SKEW, now=now):
            raise Unauthenticated("the ID token has been used already: log in again with `gpu-dev login`")
        return person
