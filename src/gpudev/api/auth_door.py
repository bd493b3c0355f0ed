"""The last step of every login: a person whom a provider vouched for is let in and given a key."""

from dataclasses import dataclass

import structlog
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.answering import JsonResponse
from gpudev.api.request_guard import RequestGuard
from gpudev.domain.errors import Forbidden
from gpudev.ports.access import Person
from gpudev.wire.access import LoginView
from gpudev.workflows.login import Login

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeyIssuer:
    login: Login

    async def issue_key(self, request: Request, person: Person) -> Response:
        """Raises Forbidden."""
        # Proven, whether let in or not: what is written down about this request may say so.
        request.state.username = person.username
        guard: RequestGuard = request.app.state.guard
        try:
            done = await self.login.log_in(person, guard.client_address(request))
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
        return JsonResponse(view, headers={"Cache-Control": "no-store"})
