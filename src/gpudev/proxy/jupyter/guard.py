"""Guard of the Jupyter proxy: client address, limits on wrong secrets and per user, audit log.

An admitted browser has one audit entry, and so has each denied request; requests to Jupyter itself are not audited.
The workflow decides who is admitted.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpudev.domain.errors import GpuDevError, LimitReached, RateLimited, Unavailable
from gpudev.domain.sessions.grants import CloseCode
from gpudev.http_edge.audit import AuditTrail, ProxyClient
from gpudev.http_edge.client_ip import ClientIpResolver
from gpudev.http_edge.error_responses import DENIED_STATUSES, http_status
from gpudev.http_edge.rate_limits import REQUEST_LIMITS, ConcurrencyLimits, Rate, TokenBuckets, rate_limit_key
from gpudev.ports.access import sanitize_text
from gpudev.ports.clock import Clock
from gpudev.proxy.jupyter.headers import Headers
from gpudev.proxy.loop_share import TINY_PIECES
from gpudev.workflows.sessions.jupyter_access import AdmittedBrowser, JupyterAccessDenied, WrongJupyter

REQUEST_ACTION = "{} /v1/jobs/{{job_id}}/jupyter/"
OPENED_ACTION, CUT_ACTION = "jupyter opened", "jupyter connection cut"
_MAX_KNOWN_WRONG = 10_000


class TooManyTinyPieces(Unavailable):
    """A user's Jupyter wastes the proxy's time."""


class JupyterGuard:
    def __init__(
        self,
        trail: AuditTrail,
        clock: Clock,
        trusted_proxies: Sequence[str],
        most_per_user: int,
        wrong_secrets: Rate = REQUEST_LIMITS.wrong_keys,
    ) -> None:
        self._trail = trail
        self._clock = clock
        self._addresses = ClientIpResolver(trusted_proxies)
        self._wrong_secrets = TokenBuckets(*wrong_secrets)
        self._known_wrong: dict[bytes, None] = {}
        self._connections = ConcurrencyLimits(most_per_user)
        self._tiny_pieces = TokenBuckets(*TINY_PIECES)

    def identify_client(self, peer: str | None, headers: Headers) -> ProxyClient:
        forwarded = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
        return ProxyClient(self._addresses.resolve(peer, forwarded), uuid.uuid4().hex)

    @contextmanager
    def limit_wrong_secrets(self, client: ProxyClient, secret: str) -> Iterator[None]:
        """Wraps the check of a secret. Raises RateLimited for an address with too many wrong secrets. The same wrong
        secret counts once, because a page that was left open repeats it."""
        limit_key = rate_limit_key(client.address)
        if wait := self._wrong_secrets.wait_seconds(limit_key):
            raise RateLimited("too many wrong secrets from your address; try again later", retry_after_seconds=wait)
        digest = hashlib.sha256(secret.encode()).digest()
        try:
            yield
        except WrongJupyter:
            self._wrong_secrets.spend(limit_key)
            raise
        except JupyterAccessDenied:
            if digest not in self._known_wrong:
                self._wrong_secrets.spend(limit_key)
                if len(self._known_wrong) >= _MAX_KNOWN_WRONG:
                    del self._known_wrong[next(iter(self._known_wrong))]
                self._known_wrong[digest] = None
            raise

    @contextmanager
    def hold_connection(self, session: AdmittedBrowser) -> Iterator[None]:
        """For one request or WebSocket of the user. Raises LimitReached."""
        user = str(session.grant.user_id)
        if not self._connections.has_free_slot(user):
            raise LimitReached(
                f"you have {self._connections.limit} connections to Jupyter open, the maximum; close some"
            )
        with self._connections.hold_slot(user):
            yield

    def check_tiny_pieces(self, session: AdmittedBrowser, count: int) -> None:
        """Counts frames or chunks of a user's Jupyter that carry almost nothing. Raises TooManyTinyPieces."""
        user = str(session.grant.user_id)
        self._tiny_pieces.spend(user, count)
        if self._tiny_pieces.wait_seconds(user):
            raise TooManyTinyPieces("Jupyter sent too many tiny chunks or frames")

    def record_opened(self, client: ProxyClient, session: AdmittedBrowser) -> None:
        now, target = self._clock.now(), str(session.grant.reservation_id)
        self._trail.record(
            client.audit_entry(now, OPENED_ACTION, "ok", username=session.username, target=target, status=200)
        )

    def record_cut(self, client: ProxyClient, session: AdmittedBrowser) -> None:
        entry = client.audit_entry(
            self._clock.now(),
            CUT_ACTION,
            CloseCode.TINY_FRAMES.name.lower(),
            username=session.username,
            target=str(session.grant.reservation_id),
        )
        self._trail.record_denied(entry)

    def record_denied(self, client: ProxyClient, error: GpuDevError, method: str, reservation_id: str) -> None:
        status = http_status(error)
        if status in DENIED_STATUSES or isinstance(error, WrongJupyter):
            action = REQUEST_ACTION.format(sanitize_text(method, 20))
            entry = client.audit_entry(self._clock.now(), action, error.code, target=reservation_id, status=status)
            self._trail.record_denied(entry)
