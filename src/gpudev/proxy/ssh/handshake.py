"""Handshake of an ssh session: validates the request, builds error responses, and limits and audits sessions."""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from websockets.datastructures import Headers, MultipleValuesError
from websockets.http11 import Request, Response

from gpudev.domain import errors
from gpudev.domain.errors import GpuDevError, RateLimited, Unauthenticated
from gpudev.domain.sessions.grants import CloseCode, SessionEnd
from gpudev.http_edge.audit import AuditTrail, ProxyClient
from gpudev.http_edge.client_ip import ClientIpResolver
from gpudev.http_edge.error_responses import (
    DENIED_STATUSES,
    http_status,
    to_error_response,
)
from gpudev.http_edge.rate_limits import REQUEST_LIMITS, Rate, TokenBuckets, rate_limit_key
from gpudev.ports.access import sanitize_text
from gpudev.ports.clock import Clock
from gpudev.workflows.sessions.ssh_tokens import AdmittedSession, SshTokens

_PATH = re.compile(r"/v1/jobs/([0-9a-fA-F-]{32,36})/ssh")


def requested_reservation(request: Request) -> str | None:
    """The reservation id in the path, if there is one."""
    found = _PATH.fullmatch(request.path.partition("?")[0])
    return found[1] if found else None


def parse_request(request: Request) -> tuple[str, str]:
    """The reservation id and the token. Raises NotFound, Invalid, Forbidden or Unauthenticated."""
    job_id = requested_reservation(request)
    if job_id is None:
        raise errors.NotFound("no WebSocket at this path")
    if "?" in request.path:
        # URLs end up in logs; a token must not.
        raise errors.Invalid("query parameters are not allowed; send the token as 'Authorization: Bearer gpudevt_…'")
    if "Origin" in request.headers:
        # Only browsers send it, and web pages must not open sessions, even with a token.
        raise errors.Forbidden("web pages cannot open ssh sessions")
    return job_id, _bearer(request.headers)


def handshake_error(error: errors.GpuDevError, request_id: str) -> Response:
    """A problem document (RFC 9457), as the API returns."""
    response = to_error_response(error)
    body = response.problem_body(request_id)
    headers = Headers(
        {
            "Content-Type": "application/problem+json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "X-Request-ID": request_id,
            **response.headers,
        }
    )
    return Response(response.status, HTTPStatus(response.status).phrase, headers, body)


def _bearer(headers: Headers) -> str:
    try:
        scheme, _, secret = headers.get("Authorization", "").partition(" ")
    except MultipleValuesError as error:
        raise errors.Unauthenticated("several Authorization headers; send one token") from error
    secret = secret.strip()
    if scheme.lower() != "bearer" or not 16 <= len(secret) <= 256 or not secret.isascii():
        raise errors.Unauthenticated("a token is required: 'Authorization: Bearer gpudevt_…'")
    return secret


# Guard of ssh sessions: client address, limit on wrong tokens, audit log. A session has two audit entries, opened and
# ended, with the same request id; a denied one has one entry.


REQUEST_ACTION = "GET /v1/jobs/{job_id}/ssh"
"""The same action as the API's endpoint at this path."""
OPENED_ACTION, ENDED_ACTION = "ssh session opened", "ssh session ended"


@dataclass(frozen=True, slots=True)
class SessionTraffic:
    seconds: float
    received: int
    sent: int


class SessionGuard:
    def __init__(
        self,
        ssh_tokens: SshTokens,
        trail: AuditTrail,
        clock: Clock,
        trusted_proxies: Sequence[str] = (),
        wrong_tokens: Rate = REQUEST_LIMITS.wrong_keys,
    ) -> None:
        self._ssh_tokens = ssh_tokens
        self._trail = trail
        self._clock = clock
        self._addresses = ClientIpResolver(trusted_proxies)
        self._wrong_tokens = TokenBuckets(*wrong_tokens)

    def identify_client(self, peer: str | None, forwarded_for: Sequence[str]) -> ProxyClient:
        return ProxyClient(self._addresses.resolve(peer, forwarded_for), uuid.uuid4().hex)

    async def admit(self, client: ProxyClient, secret: str, job_id: str) -> AdmittedSession:
        """Raises RateLimited for an address with too many wrong tokens, and whatever the workflow raises."""
        limit_key = rate_limit_key(client.address)
        if wait := self._wrong_tokens.wait_seconds(limit_key):
            raise RateLimited("too many wrong tokens from your address; try again later", retry_after_seconds=wait)
        try:
            return await self._ssh_tokens.admit_session(secret, job_id)
        except Unauthenticated:
            self._wrong_tokens.spend(limit_key)
            raise

    def record_denied(self, client: ProxyClient, error: GpuDevError, job_id: str | None) -> None:
        status = http_status(error)
        if status in DENIED_STATUSES:
            target = job_id and sanitize_text(job_id)
            self._trail.record_denied(
                client.audit_entry(self._clock.now(), REQUEST_ACTION, error.code, target=target, status=status)
            )

    def record_opened(self, client: ProxyClient, admitted: AdmittedSession) -> None:
        target = str(admitted.grant.reservation_id)
        now = self._clock.now()
        self._trail.record(
            client.audit_entry(now, OPENED_ACTION, "ok", username=admitted.username, target=target, status=101)
        )

    def record_ended(
        self, client: ProxyClient, admitted: AdmittedSession, ending: SessionEnd, traffic: SessionTraffic
    ) -> None:
        target = (
            f"{admitted.grant.reservation_id} after {traffic.seconds:.1f} s, "
            f"{traffic.received} bytes there, {traffic.sent} back"
        )
        outcome = "ok" if ending.code is CloseCode.DONE else ending.code.name.lower()
        now = self._clock.now()
        self._trail.record(client.audit_entry(now, ENDED_ACTION, outcome, username=admitted.username, target=target))
