"""Permissions: the one table of all endpoints with the role each needs, and its check.

To add an endpoint, add its line to ENDPOINT_RULES: method and path template as its route has them, then what it needs.
`own` says that it is about the caller's own things: another user's answer 404 (reservations are there for operators).
`login` marks where people prove who they are: open, limited per address, and in the audit log whatever comes of it.
`gives_keys` limits how often one user may ask.
An endpoint without a line is refused when the app is made; tests/integration/access/test_permissions.py tries every
line with every role.
Which thing belongs to whom is not known here: the workflows look for what is the caller's.
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
                return "Needs no key."
            case RequiredRole.USER:
                return "Needs a key. What is another user's is not there." if self.own_only else "Needs a key."
            case RequiredRole.OPERATOR | RequiredRole.ADMIN:
                return f"Needs the role `{self.required_role}`."


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
    """A programming error: nobody decided who may use this endpoint."""


def get_rule(methods: Iterable[str] | None, path: str) -> EndpointRule:
    (method,) = methods or ("?",)
    try:
        return ENDPOINT_RULES[f"{method} {path}"]
    except KeyError:
        raise MissingRule(
            f"{method} {path} has no line in gpudev.api.permissions.ENDPOINT_RULES: who may use it?"
        ) from None


def check_role(rule: EndpointRule, user: User) -> None:
    if _ROLE_RANK[user.role] < _REQUIRED_RANK[rule.required_role]:
        role = "admins" if rule.required_role is RequiredRole.ADMIN else "operators"
        raise Forbidden(f"this is for {role}; your role is {user.role}")
