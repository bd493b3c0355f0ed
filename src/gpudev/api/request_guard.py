"""The guard of every /v1 endpoint: authentication, permission, rate limits and the audit log.

Ownership of resources is checked by the workflows, not here.
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
"""Streams check their authorization periodically; together, a stream ends within a second of the revocation."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class RequestGuard:
    authentication: Authentication
    addresses: ClientIpResolver
    trail: AuditTrail
    clock: Clock
    logins: TokenBuckets
    """Per address."""
    rotations: TokenBuckets
    """Per user."""
    streams_of_user: ConcurrencyLimits
    streams_from_address: ConcurrencyLimits

    async def admit(self, request: Request, rule: EndpointRule) -> None:
        """Raises Unauthenticated, Forbidden or RateLimited."""
        if rule.required_role is not RequiredRole.OPEN:
            key = await self.authentication.authenticate(
                request.headers.get("authorization"), self.client_address(request)
            )
            request.state.caller = key
            request.state.username = key.user.username
            check_role(rule, key.user)
            if rule.issues_keys and (wait := self.rotations.take(str(key.user.user_id))):
                raise RateLimited("you rotate keys too often; try again later", retry_after_seconds=wait)
        elif rule.is_login and (wait := self.logins.take(rate_limit_key(self.client_address(request)))):
            raise RateLimited("too many logins from your address; try again later", retry_after_seconds=wait)

    def client_address(self, request: Request) -> str | None:
        """None: the request came over a unix socket."""
        peer = request.client.host if request.client else None
        return self.addresses.resolve(peer, request.headers.getlist("x-forwarded-for"))

    def reserve_stream(self, request: Request) -> AbstractContextManager[None]:
        """Holds a stream slot of the user and the address. Raises LimitReached: a stream occupies a connection for as
        long as it runs."""
        caller: ApiKey = request.state.caller
        user, address = str(caller.user.user_id), rate_limit_key(self.client_address(request))
        if not self.streams_of_user.has_free_slot(user):
            raise LimitReached(f"you have {self.streams_of_user.limit} event streams open, the maximum; close some")
        if not self.streams_from_address.has_free_slot(address):
            raise LimitReached("too many event streams are open from your address; close some or try again later")
        return self._hold_stream(user, address)

    @contextmanager
    def _hold_stream(self, user: str, address: str) -> Iterator[None]:
        with self.streams_of_user.hold_slot(user), self.streams_from_address.hold_slot(address):
            yield

    async def is_still_authorized(self, request: Request) -> bool:
        """Whether the key of an admitted request is still valid and its user's role unchanged: a response that an
        operator requested must not go on for a user. If this cannot be checked, the request stays authorized."""
        admitted: ApiKey = request.state.caller
        try:
            current = await self.authentication.authenticate(
                request.headers.get("authorization"),
                self.client_address(request),
                unconfirmed_seconds=_STREAM_UNCONFIRMED_SECONDS,
            )
        except Unauthenticated:
            return False
        except (RateLimited, Unavailable):
            return True
        return current.user.role is admitted.user.role


class AuditedEndpoint:
    """An endpoint with its audit log: records every change and every login, whatever the outcome, and every denied
    request.

    An endpoint can set `request.state.audit_target` when its path does not identify the target.
    """

    def __init__(self, action: str, rule: EndpointRule, handle: Handler) -> None:
        self._action = action
        self._audits_success = rule.is_login or not action.startswith("GET ")
        self._handle = handle

    async def __call__(self, request: Request) -> Response:
        try:
            response = await self._handle(request)
        except asyncio.CancelledError:  # the service stops; whether the change was made is unknown
            self._record(request, "cut_off", 499, None)
            raise
        except Exception as error:  # recorded and raised again
            self._record(request, *_classify_error(error), None)
            raise
        if self._audits_success:
            status = response.status_code
            self._record(request, "ok" if status < 400 else str(status), status, response.headers.get("location"))
        return response

    def _record(self, request: Request, outcome: str, status: int, location: str | None) -> None:
        is_denied = status in DENIED_STATUSES
        if not (self._audits_success or is_denied):
            return
        guard: RequestGuard = request.app.state.guard
        state = request.state
        caller: ApiKey | None = getattr(state, "caller", None)
        audit_target: str | None = getattr(state, "audit_target", None)
        target = audit_target or location or " ".join(str(part) for part in request.path_params.values())
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
        if is_denied:
            guard.trail.record_denied(entry)
        else:
            guard.trail.record(entry)


def _classify_error(error: Exception) -> tuple[str, int]:
    """The outcome and the HTTP status that the error will get."""
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
