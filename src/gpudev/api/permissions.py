"""Permissions: the table of all endpoints with the role each requires, and the role check.

To add an endpoint, add it to ENDPOINT_RULES: method and path template as in its route, then its rule.
`own_only`: it serves the caller's own resources; those of other users are 404 (operators can access all reservations).
`is_login`: a login: open, limited per address, always in the audit log.
`issues_keys`: limited per user.
An endpoint without a rule fails at startup; tests/integration/access/test_permissions.py tests every rule with every
role. Ownership is not checked here: the workflows look up only what belongs to the caller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from gpudev.domain.access.users import Role, User
from gpudev.domain.errors import Forbidden


class RequiredRole(StrEnum):
    OPEN = "open"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class EndpointRule:
    required_role: RequiredRole
    own_only: bool = False
    is_login: bool = False
    issues_keys: bool = False

    @property
    def description(self) -> str:
        """For the OpenAPI document."""
        match self.required_role:
            case RequiredRole.OPEN:
                return "Requires no API key."
            case RequiredRole.USER:
                if self.own_only:
                    return "Requires an API key. Other users' resources are 404."
                return "Requires an API key."
            case RequiredRole.OPERATOR | RequiredRole.ADMIN:
                return f"Requires the role `{self.required_role}`."


_OPEN = EndpointRule(RequiredRole.OPEN)
_LOGIN = EndpointRule(RequiredRole.OPEN, is_login=True)
_USER = EndpointRule(RequiredRole.USER)
_OWN = EndpointRule(RequiredRole.USER, own_only=True)
_OPERATOR = EndpointRule(RequiredRole.OPERATOR)
_ADMIN = EndpointRule(RequiredRole.ADMIN)

ENDPOINT_RULES: Mapping[str, EndpointRule] = MappingProxyType(
    {
        # Health
        "GET /health": _OPEN,
        "GET /health/live": _OPEN,
        "GET /health/ready": _OPEN,
        # Logging in, and keys
        "GET /v1/auth/methods": _OPEN,
        "POST /v1/auth/nonce": _LOGIN,
        "POST /v1/auth/aws-login": _LOGIN,
        "POST /v1/auth/oidc-login": _LOGIN,
        "POST /v1/auth/invitation-login": _LOGIN,
        "POST /v1/keys/rotate": EndpointRule(RequiredRole.USER, own_only=True, issues_keys=True),
        "DELETE /v1/keys/current": _OWN,
        # Reservations
        "POST /v1/jobs/submit": _OWN,
        "GET /v1/jobs": _OWN,
        "GET /v1/jobs/{job_id}": _OWN,
        "POST /v1/jobs/{job_id}/cancel": _OWN,
        "POST /v1/jobs/{job_id}/extend": _OWN,
        "POST /v1/jobs/{job_id}/priority": _OPERATOR,
        "GET /v1/jobs/{job_id}/events": _OWN,
        "POST /v1/jobs/{job_id}/proxy-token": _OWN,
        "GET /v1/jobs/{job_id}/ssh": _OWN,
        "GET /v1/jobs/{job_id}/users": _OWN,
        "POST /v1/jobs/{job_id}/users": _OWN,
        "DELETE /v1/jobs/{job_id}/users/{github_user}": _OWN,
        "GET /v1/jobs/{job_id}/jupyter": _OWN,
        "POST /v1/jobs/{job_id}/jupyter/enable": _OWN,
        "POST /v1/jobs/{job_id}/jupyter/disable": _OWN,
        "POST /v1/jobs/{job_id}/jupyter/link": _OWN,
        # Disks
        "POST /v1/disks": _OWN,
        "GET /v1/disks": _OWN,
        "GET /v1/disks/{name}": _OWN,
        "DELETE /v1/disks/{name}": _OWN,
        "POST /v1/disks/{name}/restore": _OWN,
        "POST /v1/disks/{name}/rename": _OWN,
        "POST /v1/disks/{name}/resize": _OWN,
        "POST /v1/disks/{name}/clone": _OWN,
        "POST /v1/disks/{name}/snapshots": _OWN,
        "GET /v1/disks/{name}/snapshots": _OWN,
        "GET /v1/disks/{name}/contents": _OWN,
        "GET /v1/disks/{name}/operations": _OWN,
        "GET /v1/disks/{name}/operations/{operation_id}": _OWN,
        # Users and their keys
        "GET /v1/users": _ADMIN,
        "POST /v1/users": _ADMIN,
        "POST /v1/users/{username}/role": _ADMIN,
        "POST /v1/users/{username}/disable": _ADMIN,
        "POST /v1/users/{username}/enable": _ADMIN,
        "GET /v1/keys": _ADMIN,
        "POST /v1/keys/{key_id}/revoke": _ADMIN,
        "GET /v1/audit": _ADMIN,
        # The catalogue and the settings
        "GET /v1/gpu-types": _ADMIN,
        "PATCH /v1/gpu-types/{name}": _ADMIN,
        "GET /v1/settings": _ADMIN,
        # The cluster
        "GET /v1/gpu/availability": _USER,
        "GET /v1/cluster/status": _USER,
        "GET /v1/cluster/plan": _USER,
        "POST /v1/cluster/nodes/{name}/cordon": _OPERATOR,
        "POST /v1/cluster/nodes/{name}/uncordon": _OPERATOR,
        "GET /v1/stats/eta": _USER,
    }
)
_ROLE_RANK = {Role.USER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}
_REQUIRED_RANK = {RequiredRole.OPEN: 0, RequiredRole.USER: 1, RequiredRole.OPERATOR: 2, RequiredRole.ADMIN: 3}


class MissingRule(Exception):
    """A programming error: an endpoint has no rule, or does not enforce it."""


def get_rule(methods: Iterable[str] | None, path: str) -> EndpointRule:
    (method,) = methods or ("?",)
    try:
        return ENDPOINT_RULES[f"{method} {path}"]
    except KeyError:
        raise MissingRule(f"{method} {path} has no rule in gpudev.api.permissions.ENDPOINT_RULES") from None


def check_role(rule: EndpointRule, user: User) -> None:
    if _ROLE_RANK[user.role] < _REQUIRED_RANK[rule.required_role]:
        role = "admins" if rule.required_role is RequiredRole.ADMIN else "operators"
        raise Forbidden(f"only {role} may do this; your role is {user.role}")
