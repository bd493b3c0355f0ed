"""How busy a reservation's GPUs are, as last measured."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class GpuUse:
    gpu: str
    """Its number on its node, as people there see it (nvidia-smi)."""
    node: str
    at: datetime
    busy: float | None = None
    """Which share of the time it computed, from 0 to 1. None: not measured."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
