"""What admins do to users and keys. Whatever is taken away here ends within a second in every API process."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpudev.domain.access.users import Role, User


@dataclass(frozen=True, slots=True)
class KeyRecord:
    key_id: int
    username: str
    key_prefix: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    """To the minute."""
    description: str
    usable: bool
    """Neither revoked nor past its end, and its user is active."""


class UserAdministration(Protocol):
    """Each raises NotFound when there is no such user or key, and Conflict for what would leave no active admin."""

    async def set_active(self, username: str, active: bool) -> User:
        """Disabling revokes all keys of the user: enabling them again gives none of these back."""
        ...

    async def set_role(self, username: str, role: Role) -> User: ...

    async def list_keys(self, username: str | None = None, *, ended: bool = False) -> list[KeyRecord]:
        """The newest first; with `ended`, also those that can no longer be used."""
        ...

    async def revoke_key(self, key_id: int) -> KeyRecord:
        """Revoking twice is fine."""
        ...
