"""The guard of every /v1 endpoint: authentication, permission, rate limits and the audit log.

What an endpoint does, and whose things it touches, is not known here.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gpudev.api.authentication import Authentication
from gpudev.api.permissions import EndpointRule, RequiredRole, check_role
from gpudev.domain.access.users import ApiKey
from gpudev.domain.errors import GpuDevError, Invalid, LimitReached, RateLimited, Unauthenticated, Unavailable
from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.client_ip import ClientIpResolver
from gpudev.http_edge.error_responses import DENIED_STATUSES, error_code, http_status
from gpudev.http_edge.rate_limits import ConcurrencyLimits, TokenBuckets, rate_limit_key
from gpudev.ports.access import AuditEntry, sanitize_text
from gpudev.ports.clock import Clock

_STREAM_UNCONFIRMED_SECONDS = 0.5
"""Streams look now and then only; together with that, it is still less than a second until one has ended."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class RequestGuard:
    authentication: Authentication
    addresses: ClientIpResolver
    trail: AuditTrail
    clock: Clock
    logins: TokenBuckets
    """By address."""
    rotations: TokenBuckets
    """By user."""
    streams_of_user: ConcurrencyLimits
    streams_from_address: ConcurrencyLimits

    async def admit(self, request: Request, rule: EndpointRule) -> None:
        """Raises Unauthenticated, Forbidden, TooOften."""
        if rule.required_role is not RequiredRole.OPEN:
            key = await self.authentication.authenticate(
                request.headers.get("authorization"), self.client_address(request)
            )
            request.state.caller = key
            request.state.username = key.user.username
            check_role(rule, key.user)
            if rule.issues_keys and (wait := self.rotations.take(str(key.user.user_id))):
                raise RateLimited("you ask for new keys too often; wait a little", retry_after_seconds=wait)
        elif rule.is_login and (wait := self.logins.take(rate_limit_key(self.client_address(request)))):
            raise RateLimited("too many logins came from your address; wait a little", retry_after_seconds=wait)

    def client_address(self, request: Request) -> str | None:
        """None: it came through no network (a unix socket)."""
        peer = request.client.host if request.client else None
        return self.addresses.resolve(peer, request.headers.getlist("x-forwarded-for"))

    def reserve_stream(self, request: Request) -> AbstractContextManager[None]:
        """A place for one more stream, while it lasts. Raises LimitReached: a stream holds its connection, and nobody
        may hold them all."""
        caller: ApiKey = request.state.caller
        user, address = str(caller.user.user_id), rate_limit_key(self.client_address(request))
        if not self.streams_of_user.has_free_slot(user):
            raise LimitReached(
                f"you have {self.streams_of_user.limit} streams of events open, and more are not allowed: close some"
            )
        if not self.streams_from_address.has_free_slot(address):
            raise LimitReached("too many streams of events are open from your address; close some, or wait a little")
        return self._hold_stream(user, address)

    @contextmanager
    def _hold_stream(self, user: str, address: str) -> Iterator[None]:
        with self.streams_of_user.hold_slot(user), self.streams_from_address.hold_slot(address):
            yield

    async def is_still_authorized(self, request: Request) -> bool:
        """Whether the key of a request that was admitted is still one, and its user's role as it was: what was looked
        for as an operator must be asked for anew. Unknown is as before."""
        admitted: ApiKey = request.state.caller
        try:
            now = await self.authentication.authenticate(
                request.headers.get("authorization"),
                self.client_address(request),
                unconfirmed_seconds=_STREAM_UNCONFIRMED_SECONDS,
            )
        except Unauthenticated:
            return False
        except (RateLimited, Unavailable):
            return True
        return now.user.role is admitted.user.role


class AuditedEndpoint:
    """An endpoint with its audit log: every change and every login is noted, whatever came of it, and every refusal.

    An endpoint may say in `request.state.audit_target` to what it was done, where its path does not say enough.
    """

    def __init__(self, action: str, rule: EndpointRule, handle: Handler) -> None:
        self._action = action
        self._audits_success = rule.is_login or not action.startswith("GET ")
        self._handle = handle

    async def __call__(self, request: Request) -> Response:
        try:
            response = await self._handle(request)
        except asyncio.CancelledError:  # a stop that could not wait; what was done by then is unknown
            self._record(request, "cut_off", 499, None)
            raise
        except Exception as error:  # only looked at, and raised again
            self._record(request, *_classify_error(error), None)
            raise
        if self._audits_success:
            status = response.status_code
            self._record(request, "ok" if status < 400 else str(status), status, response.headers.get("location"))
        return response

    def _record(self, request: Request, outcome: str, status: int, made: str | None) -> None:
        is_refusal = status in DENIED_STATUSES
        if not (self._audits_success or is_refusal):
            return
        guard: RequestGuard = request.app.state.guard
        state = request.state
        caller: ApiKey | None = getattr(state, "caller", None)
        said: str | None = getattr(state, "audit_target", None)
        target = said or made or " ".join(str(part) for part in request.path_params.values())
        entry = AuditEntry(
            at=guard.clock.now(),
            action=self._action,
            outcome=outcome,
            username=getattr(state, "username", None),
            key_prefix=caller.key_prefix if caller else None,
            target=sanitize_text(target) or None,
            address=guard.client_address(request),
            status=status,
            request_id=state.request_id,
        )
        if is_refusal:
            guard.trail.record_denied(entry)
        else:
            guard.trail.record(entry)


def _classify_error(error: Exception) -> tuple[str, int]:
    """What will be answered."""
    match error:
        case GpuDevError():
            return error.code, http_status(error)
        case RequestValidationError():
            return Invalid.code, 422
        case HTTPException():
            return error_code(error.status_code), error.status_code
        case ClientDisconnect():
            return "disconnected", 499
        case _:
            return "internal", 500
