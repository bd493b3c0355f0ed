"""Who an invitation lets in."""

from dataclasses import dataclass

from gpudev.domain.errors import Unauthenticated
from gpudev.ports.access import Person
from gpudev.ports.clock import Clock
from gpudev.ports.invitations import INVITATION_PROVIDER, InvitationStore


@dataclass(frozen=True, slots=True)
class InvitationLogin:
    """An identity provider: its proof is the secret of a link."""

    invitations: InvitationStore
    clock: Clock

    async def identify(self, proof: str) -> Person:
        invitation = await self.invitations.accept(proof, now=self.clock.now())
        if invitation is None:
            # Used, revoked, expired or never made: the difference is nobody's business.
            raise Unauthenticated("this invitation is not good (any more): ask for a new one")
        # Whoever invites answers for who comes; the name is all there is to know them by.
        return Person(invitation.username, INVITATION_PROVIDER, invitation.username.lower(), role=invitation.role)
