"""At Jupyter's door: where somebody comes from, how many wrong links and cookies may, how much one user has at once,
and what is written down.

A browser that is let in leaves one entry in the audit log, and so does whoever is turned away for who they are; what it
then asks of Jupyter leaves none. Who may go where is the workflow's to say, and what is passed on is not known here.
"""

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from gpudev.domain.errors import GpuDevError, LimitReached, TooOften
from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.client_ip import ClientAddresses
from gpudev.http_edge.error_responses import REFUSALS, status_of
from gpudev.http_edge.rate_limits import Places, TokenBuckets, neighbourhood
from gpudev.ports.auditing import harmless
from gpudev.ports.clock import Clock
from gpudev.proxy.jupyter.headers import Headers
from gpudev.proxy.ssh.handshake import Visitor
from gpudev.settings import Guarding
from gpudev.workflows.sessions.jupyter_access import ForAnother, Guest, NotLetIn

ASKED = "{} /v1/jobs/{{job_id}}/jupyter/"
OPENED = "jupyter opened"
_MOST_KNOWN = 10_000


class JupyterGuard:
    def __init__(self, trail: AuditTrail, clock: Clock, limits: Guarding, most_per_user: int) -> None:
        self._trail = trail
        self._clock = clock
        self._addresses = ClientAddresses(limits.trusted_proxies)
        self._wrong = TokenBuckets(limits.wrong_keys_burst, limits.wrong_keys_per_minute)
        self._known_wrong: dict[bytes, None] = {}
        self._ways = Places(most_per_user)

    def greet(self, peer: str | None, headers: Headers) -> Visitor:
        forwarded = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
        return Visitor(self._addresses.of(peer, forwarded), uuid.uuid4().hex)

    @contextmanager
    def trying(self, visitor: Visitor, secret: str) -> Iterator[None]:
        """Around asking whether a secret is good. Raises TooOften for an address that many wrong ones came from.
        The same one again, as from a page that was left open, is no new try: none becomes good later."""
        whose = neighbourhood(visitor.address)
        if wait := self._wrong.wait(whose):
            raise TooOften("too many wrong secrets came from your address; wait a little", again_in_seconds=wait)
        digest = hashlib.sha256(secret.encode()).digest()
        try:
            yield
        except ForAnother:
            self._wrong.spend(whose)
            raise
        except NotLetIn:
            if digest not in self._known_wrong:
                self._wrong.spend(whose)
                if len(self._known_wrong) >= _MOST_KNOWN:
                    del self._known_wrong[next(iter(self._known_wrong))]
                self._known_wrong[digest] = None
            raise

    @contextmanager
    def holding(self, guest: Guest) -> Iterator[None]:
        """One more request or WebSocket of theirs, while it lasts. Raises LimitReached."""
        user = str(guest.grant.user_id)
        if not self._ways.are_free(user):
            raise LimitReached(
                f"you have {self._ways.most} connections to Jupyter open, and more are not allowed: close some"
            )
        with self._ways.taken(user):
            yield

    def let_in(self, visitor: Visitor, guest: Guest) -> None:
        now, target = self._clock.now(), str(guest.grant.reservation_id)
        self._trail.note(visitor.entry(now, OPENED, "ok", username=guest.username, target=target, status=200))

    def refused(self, visitor: Visitor, error: GpuDevError, method: str, asked: str) -> None:
        status = status_of(error)
        if status in REFUSALS or isinstance(error, ForAnother):
            action = ASKED.format(harmless(method, 20))
            entry = visitor.entry(self._clock.now(), action, error.code, target=asked, status=status)
            self._trail.note_refusal(entry)
