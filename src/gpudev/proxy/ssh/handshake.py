"""At the proxy's door: where somebody comes from, how many wrong tokens may come from there, and what is written down.

A session leaves two entries in the audit log, when it opens and when it ends, with one request id; whoever is turned
away for who they are leaves one. Who may go where is the workflow's to say, and bytes are not known here.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.errors import GpuDevError, TooOften, Unauthenticated
from gpudev.domain.sessions.grants import Close, Ending
from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.client_ip import ClientAddresses
from gpudev.http_edge.error_responses import REFUSALS, status_of
from gpudev.http_edge.rate_limits import TokenBuckets, neighbourhood
from gpudev.ports.auditing import AuditEntry, harmless
from gpudev.ports.clock import Clock
from gpudev.settings import Guarding
from gpudev.workflows.sessions.ssh_tokens import Admitted, Proxying

ASKED = "GET /v1/jobs/{job_id}/ssh"
"""As the API calls the same address."""
OPENED, ENDED = "ssh session opened", "ssh session ended"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever asks to be let through, and is or is not."""

    address: str | None
    request_id: str

    def entry(
        self,
        at: datetime,
        action: str,
        outcome: str,
        *,
        username: str | None = None,
        target: str | None = None,
        status: int | None = None,
    ) -> AuditEntry:
        """What they did, for the audit log."""
        return AuditEntry(
            at=at,
            action=action,
            outcome=outcome,
            username=username,
            target=target,
            address=self.address,
            status=status,
            request_id=self.request_id,
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    seconds: float
    received: int
    sent: int


class SessionGuard:
    def __init__(self, proxying: Proxying, trail: AuditTrail, clock: Clock, limits: Guarding) -> None:
        self._proxying = proxying
        self._trail = trail
        self._clock = clock
        self._addresses = ClientAddresses(limits.trusted_proxies)
        self._wrong_tokens = TokenBuckets(limits.wrong_keys_burst, limits.wrong_keys_per_minute)

    def greet(self, peer: str | None, forwarded_for: Sequence[str]) -> Visitor:
        return Visitor(self._addresses.of(peer, forwarded_for), uuid.uuid4().hex)

    async def admit(self, visitor: Visitor, secret: str, asked: str) -> Admitted:
        """Raises TooOften for an address that many wrong tokens came from, and what the workflow raises."""
        whose = neighbourhood(visitor.address)
        if wait := self._wrong_tokens.wait(whose):
            raise TooOften("too many wrong tokens came from your address; wait a little", again_in_seconds=wait)
        try:
            return await self._proxying.admit(secret, asked)
        except Unauthenticated:
            self._wrong_tokens.spend(whose)
            raise

    def refused(self, visitor: Visitor, error: GpuDevError, asked: str | None) -> None:
        status = status_of(error)
        if status in REFUSALS:
            target = asked and harmless(asked)
            self._trail.note_refusal(visitor.entry(self._clock.now(), ASKED, error.code, target=target, status=status))

    def opened(self, visitor: Visitor, admitted: Admitted) -> None:
        target = str(admitted.grant.reservation_id)
        now = self._clock.now()
        self._trail.note(visitor.entry(now, OPENED, "ok", username=admitted.username, target=target, status=101))

    def ended(self, visitor: Visitor, admitted: Admitted, ending: Ending, traffic: Traffic) -> None:
        target = (
            f"{admitted.grant.reservation_id} after {traffic.seconds:.1f} s, "
            f"{traffic.received} bytes there, {traffic.sent} back"
        )
        outcome = "ok" if ending.close is Close.DONE else ending.close.name.lower()
        now = self._clock.now()
        self._trail.note(visitor.entry(now, ENDED, outcome, username=admitted.username, target=target))
