"""From an ID token to the person it vouches for: signature, claims, and that it is used once."""

import hashlib

from gpudev.adapters.oidc.claims import SKEW, check_claims, person_of
from gpudev.adapters.oidc.issuer import Issuer
from gpudev.adapters.oidc.signatures import key_name, signed_claims
from gpudev.domain.errors import Unauthenticated
from gpudev.ports.clock import Clock
from gpudev.ports.identity import Person
from gpudev.ports.invitations import IdToken, UsedTokens
from gpudev.settings import OidcSettings


class OidcProvider:
    """An identity provider: its proof is an ID token, which is good once."""

    def __init__(self, settings: OidcSettings, issuer: Issuer, used: UsedTokens, clock: Clock) -> None:
        self._settings = settings
        self._issuer = issuer
        self._used = used
        self._clock = clock

    async def identify(self, proof: IdToken) -> Person:
        now = self._clock.now()
        claims = signed_claims(proof.token, await self._issuer.key(key_name(proof.token)))
        ends = check_claims(claims, self._settings, now, proof.nonce)
        person = person_of(claims, self._settings)
        # By what was signed: a signature may be spelled in more than one way.
        digest = hashlib.sha256(proof.token.rpartition(".")[0].encode()).digest()
        if not await self._used.use_token(digest, ends + SKEW, now=now):
            raise Unauthenticated("the ID token has been used already: log in again with `gpu-dev login`")
        return person
