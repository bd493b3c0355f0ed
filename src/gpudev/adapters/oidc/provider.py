"""From an ID token to the person it vouches for: signature, claims, and that it is used once."""

import hashlib
from collections.abc import Sequence

from gpudev.adapters.oidc.claims import CLOCK_SKEW, check_claims, person_from_claims
from gpudev.adapters.oidc.issuer_keys import IssuerKeys
from gpudev.adapters.oidc.signatures import token_key_id, verify_signature
from gpudev.domain.errors import Unauthenticated
from gpudev.domain.oidc_login import names_another_server
from gpudev.ports.access import Person
from gpudev.ports.clock import Clock
from gpudev.ports.invitations import IdToken, UsedTokens
from gpudev.settings import OidcSettings


class OidcProvider:
    """An identity provider: its proof is an ID token, which is good once."""

    def __init__(
        self,
        settings: OidcSettings,
        issuer: IssuerKeys,
        used: UsedTokens,
        clock: Clock,
        server_names: Sequence[str] = (),
    ) -> None:
        """`server_names`: as whom people reach us. None: a token that was meant for another server is not noticed."""
        self._settings = settings
        self._server_names = server_names
        self._issuer = issuer
        self._used_tokens = used
        self._clock = clock

    async def identify(self, proof: IdToken) -> Person:
        now = self._clock.now()
        claims = verify_signature(proof.token, await self._issuer.get_key(token_key_id(proof.token)))
        ends = check_claims(claims, self._settings, now, proof.nonce)
        if self._server_names and names_another_server(claims.get("nonce"), self._server_names):
            raise Unauthenticated("the ID token was got for a login to another server than this one")
        person = person_from_claims(claims, self._settings)
        # By what was signed: a signature may be spelled in more than one way.
        digest = hashlib.sha256(proof.token.rpartition(".")[0].encode()).digest()
        if not await self._used_tokens.use_token(digest, ends + CLOCK_SKEW, now=now):
            raise Unauthenticated("the ID token has been used already: log in again with `gpu-dev login`")
        return person
