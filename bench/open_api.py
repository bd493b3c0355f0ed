"""The real API, except that the given endpoint needs no key; used only to measure the cost of authentication.

    python -m bench.open_api "GET /v1/cluster/status"

Only the endpoint's rule in the permissions table differs, and the caller is a fixed user.
"""

import sys
from datetime import UTC, datetime
from types import MappingProxyType

from starlette.requests import Request

from gpudev import main
from gpudev.api import permissions
from gpudev.api.request_guard import RequestGuard
from gpudev.domain.access.users import ApiKey, Role, User
from gpudev.domain.ids import UserId

_NOBODY = ApiKey(0, User(UserId(0), "nobody", Role.USER), "gpudev_", datetime.now(UTC), None, True)


def take_out_door(endpoint: str) -> None:
    permissions.ENDPOINT_RULES = MappingProxyType(
        {**permissions.ENDPOINT_RULES, endpoint: permissions.EndpointRule(permissions.RequiredRole.OPEN)}
    )
    with_door = RequestGuard.admit

    async def admit(guard: RequestGuard, request: Request, rule: permissions.EndpointRule) -> None:
        await with_door(guard, request, rule)
        if rule.required_role is permissions.RequiredRole.OPEN:
            request.state.caller = _NOBODY  # the endpoint expects a user

    RequestGuard.admit = admit  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    take_out_door(sys.argv[1])
    main.cli(["api"])
