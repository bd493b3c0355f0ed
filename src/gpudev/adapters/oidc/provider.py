"""From an ID token to the person it vouches for: signature, claims, and that it is used once."""

import hashlib
from collections.abc import Sequence

from gpudev.adapters.oidc.claims import SKEW, check_claims, person_of
from gpudev.adapters.oidc.issuer_keys import Issuer
from gpudev.adapters.oidc.signatures import key_name, signed_claims
from gpudev.domain.errors import Unauthenticated
from gpudev.domain.oidc_login import is_for_another
from gpudev.ports.access import Person
from gpudev.ports.clock import Clock
from gpudev.ports.invitations import IdToken, UsedTokens
from gpudev.settings import OidcSettings


class OidcProvider:
    """An identity provider: its proof is an ID token, which is good once."""

    def __init__(
        self,
        settings: OidcSettings,
        issuer: Issuer,
        used: UsedTokens,
        clock: Clock,
        server_names: Sequence[str] = (),
    ) -> None:
        """`server_names`: as whom people reach us. None: a token that was meant for another server is not noticed."""
        self._settings = settings
        self._server_names = server_names
        self._issuer = issuer
        self._used = used
        self._clock = clock

    async def identify(self, proof: IdToken) -> Person:
        now = self._clock.now()
        claims = signed_claims(proof.token, await self._issuer.key(key_name(proof.token)))
        ends = check_claims(claims, self._settings, now, proof.nonce)
        if self._server_names and is_for_another(claims.get("nonce"), self._server_names):
            raise Unauthenticated("the ID token was got for a login to another server than this one")
        person = person_of(claims, self._settings)
        # By what was signed: a signature may be spelled in more than one way.
        digest = hashlib.sha256(proof.token.rpartition(".")[0].encode()).digest()
        if not await self._used.use_token(digest, ends + SKEW, now=now):
            raise Unauthenticated("the ID token has been used already: log in again with `gpu-dev login`")
        return person
