"""Administration on the wire: users, keys, the audit log, GPU types and settings."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

RoleName = Literal["user", "operator", "admin"]
_STRICT: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class NewUserRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    username: str = field(metadata={"description": "Letters, digits and . _ @ + -, at most 255"})
    role: RoleName = "user"


@dataclass(frozen=True, kw_only=True)
class RoleRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    role: RoleName


@dataclass(frozen=True, kw_only=True)
class UserView:
    username: str
    role: RoleName
    is_active: bool
    email: str | None


@dataclass(frozen=True, kw_only=True)
class UserList:
    users: list[UserView]


@dataclass(frozen=True, kw_only=True)
class KeyRecordView:
    """Never the key itself: its holder recognizes it by `key_prefix`."""

    key_id: int
    username: str
    key_prefix: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    description: str
    usable: bool


@dataclass(frozen=True, kw_only=True)
class KeyList:
    keys: list[KeyRecordView]


@dataclass(frozen=True, kw_only=True)
class AuditEntryView:
    entry_id: int
    at: datetime
    username: str | None
    key_prefix: str | None
    action: str
    target: str | None
    address: str | None
    outcome: str
    status: int | None
    request_id: str | None


@dataclass(frozen=True, kw_only=True)
class AuditEntryList:
    entries: list[AuditEntryView]


# GPU types and settings.


@dataclass(frozen=True, kw_only=True)
class GpuTypeView:
    name: str
    instance_type: str
    max_gpus: int = field(metadata={"description": "Per node; 0: a CPU type"})
    cpus: int
    memory_gb: int
    multinode: bool
    description: str
    is_active: bool = field(metadata={"description": "Whether it can be reserved"})


@dataclass(frozen=True, kw_only=True)
class GpuTypeList:
    gpu_types: list[GpuTypeView]


@dataclass(frozen=True, kw_only=True)
class GpuTypeChange:
    """Absent or null: unchanged."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    is_active: bool | None = None
    description: str | None = field(
        default=None, metadata={"description": "One line of at most 200 printable characters"}
    )


@dataclass(frozen=True, kw_only=True)
class SettingsView:
    settings: dict[str, Any] = field(
        metadata={"description": "By name; durations in seconds; secrets as `set` or `unset`"}
    )
