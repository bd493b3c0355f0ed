"""The last step of every login: a person whom a provider vouched for is let in and given a key."""

from dataclasses import dataclass

import structlog
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.answering import JsonAnswer
from gpudev.api.request_guard import Guard
from gpudev.domain.errors import Forbidden
from gpudev.ports.access import Person
from gpudev.wire.access import LoginView
from gpudev.workflows.login import LoggingIn

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Door:
    logging_in: LoggingIn

    async def let_in(self, request: Request, person: Person) -> Response:
        """Raises Forbidden."""
        # Proven, whether let in or not: what is written down about this request may say so.
        request.state.username = person.username
        guard: Guard = request.app.state.guard
        try:
            done = await self.logging_in.log_in(person, guard.address_of(request))
        except Forbidden as refusal:
            log.info("login.refused", provider=person.provider, username=person.username, reason=refusal.message)
            raise
        request.state.username = done.user.username
        log.info("login.done", provider=person.provider, username=done.user.username, role=done.user.role.value)
        view = LoginView(
            api_key=done.key.secret,
            expires_at=done.key.expires_at,
            username=done.user.username,
            role=done.user.role.value,
        )
        return JsonAnswer(view, headers={"Cache-Control": "no-store"})
