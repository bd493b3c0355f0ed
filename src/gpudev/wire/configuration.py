"""The catalogue and the settings, as admins see them."""

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class GpuTypeView:
    name: str
    instance_type: str
    max_gpus: int = field(metadata={"description": "On one node; 0: a CPU type"})
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
    """What is left out, or null, stays."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    is_active: bool | None = None
    description: str | None = field(
        default=None, metadata={"description": "One line of at most 200 printable characters"}
    )


@dataclass(frozen=True, kw_only=True)
class SettingsView:
    settings: dict[str, Any] = field(
        metadata={"description": "By name; durations in seconds; of a secret only `set` or `unset`"}
    )
