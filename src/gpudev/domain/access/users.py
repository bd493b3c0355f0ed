"""Users, roles and API keys."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpudev.domain.errors import Invalid
from gpudev.domain.ids import UserId

_USERNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,254}")


class Role(StrEnum):
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class User:
    user_id: UserId
    username: str
    role: Role
    is_active: bool = True
    email: str | None = None


@dataclass(frozen=True, slots=True)
class FairShareUsage:
    """A user's recent usage and weight, the input of fair share."""

    gpu_hours: float
    """Recent use; older use counts less."""
    weight: float = 1.0
    """The user's share of the cluster, relative to others."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the database stores it: never the secret."""

    key_id: int
    user: User
    key_prefix: str
    created_at: datetime
    expires_at: datetime | None
    is_active: bool


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """Shown once, to its owner."""

    secret: str
    expires_at: datetime | None


def check_username(name: str) -> str:
    if not _USERNAME.fullmatch(name):
        raise Invalid(
            f"invalid user name {name[:80]!r} (expected a letter or digit, then letters, digits and . _ @ + -)",
            field="username",
        )
    return name
