"""At the door of every /v1 endpoint: who asks, whether they may, how often; and the audit log of what came of it.

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
from gpudev.api.http.responses import code_of
from gpudev.api.permissions import Needs, Rule, check_role
from gpudev.domain.access.users import ApiKey
from gpudev.domain.errors import GpuDevError, Invalid, LimitReached, TooOften, Unauthenticated, Unavailable
from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.client_ip import ClientAddresses
from gpudev.http_edge.error_responses import REFUSALS, status_of
from gpudev.http_edge.rate_limits import Places, TokenBuckets, neighbourhood
from gpudev.ports.auditing import AuditEntry, harmless
from gpudev.ports.clock import Clock

_STREAM_UNHEARD_S = 0.5
"""Streams look now and then only; together with that, it is still less than a second until one has ended."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class Guard:
    authentication: Authentication
    addresses: ClientAddresses
    trail: AuditTrail
    clock: Clock
    logins: TokenBuckets
    """By address."""
    rotations: TokenBuckets
    """By user."""
    streams_of_user: Places
    streams_from_address: Places

    async def admit(self, request: Request, rule: Rule) -> None:
        """Raises Unauthenticated, Forbidden, TooOften."""
        if rule.needs is not Needs.OPEN:
            key = await self.authentication.authenticate(request.headers.get("authorization"), self.address_of(request))
            request.state.caller = key
            request.state.username = key.user.username
            check_role(rule, key.user)
            if rule.gives_keys and (wait := self.rotations.take(str(key.user.user_id))):
                raise TooOften("you ask for new keys too often; wait a little", again_in_seconds=wait)
        elif rule.login and (wait := self.logins.take(neighbourhood(self.address_of(request)))):
            raise TooOften("too many logins came from your address; wait a little", again_in_seconds=wait)

    def address_of(self, request: Request) -> str | None:
        """None: it came through no network (a unix socket)."""
        peer = request.client.host if request.client else None
        return self.addresses.of(peer, request.headers.getlist("x-forwarded-for"))

    def streaming(self, request: Request) -> AbstractContextManager[None]:
        """A place for one more stream, while it lasts. Raises LimitReached: a stream holds its connection, and nobody
        may hold them all."""
        caller: ApiKey = request.state.caller
        user, address = str(caller.user.user_id), neighbourhood(self.address_of(request))
        if not self.streams_of_user.are_free(user):
            raise LimitReached(
                f"you have {self.streams_of_user.most} streams of events open, and more are not allowed: close some"
            )
        if not self.streams_from_address.are_free(address):
            raise LimitReached("too many streams of events are open from your address; close some, or wait a little")
        return self._held(user, address)

    @contextmanager
    def _held(self, user: str, address: str) -> Iterator[None]:
        with self.streams_of_user.taken(user), self.streams_from_address.taken(address):
            yield

    async def still_knows(self, request: Request) -> bool:
        """Whether the key of a request that was admitted is still one, and its user's role as it was: what was looked
        for as an operator must be asked for anew. Unknown is as before."""
        admitted: ApiKey = request.state.caller
        try:
            now = await self.authentication.authenticate(
                request.headers.get("authorization"), self.address_of(request), unheard_s=_STREAM_UNHEARD_S
            )
        except Unauthenticated:
            return False
        except (TooOften, Unavailable):
            return True
        return now.user.role is admitted.user.role


class Recorded:
    """An endpoint with its audit log: every change and every login is noted, whatever came of it, and every refusal.

    An endpoint may say in `request.state.audit_target` to what it was done, where its path does not say enough.
    """

    def __init__(self, action: str, rule: Rule, handle: Handler) -> None:
        self._action = action
        self._always = rule.login or not action.startswith("GET ")
        self._handle = handle

    async def __call__(self, request: Request) -> Response:
        try:
            response = await self._handle(request)
        except asyncio.CancelledError:  # a stop that could not wait; what was done by then is unknown
            self._note(request, "cut_off", 499, None)
            raise
        except Exception as error:  # only looked at, and raised again
            self._note(request, *_read(error), None)
            raise
        if self._always:
            status = response.status_code
            self._note(request, "ok" if status < 400 else str(status), status, response.headers.get("location"))
        return response

    def _note(self, request: Request, outcome: str, status: int, made: str | None) -> None:
        is_refusal = status in REFUSALS
        if not (self._always or is_refusal):
            return
        guard: Guard = request.app.state.guard
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
            target=harmless(target) or None,
            address=guard.address_of(request),
            status=status,
            request_id=state.request_id,
        )
        if is_refusal:
            guard.trail.note_refusal(entry)
        else:
            guard.trail.note(entry)


def _read(error: Exception) -> tuple[str, int]:
    """What will be answered."""
    match error:
        case GpuDevError():
            return error.code, status_of(error)
        case RequestValidationError():
            return Invalid.code, 422
        case HTTPException():
            return code_of(error.status_code), error.status_code
        case ClientDisconnect():
            return "disconnected", 499
        case _:
            return "internal", 500
