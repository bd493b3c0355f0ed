"""Plans and estimate statistics on the wire."""

from dataclasses import dataclass, field
from datetime import datetime


def _doc(text: str) -> dict[str, str]:
    return {"description": text}


@dataclass(frozen=True, kw_only=True)
class EtaErrors:
    median_minutes: float | None = field(metadata=_doc("Of the absolute error; null: no starts yet"))
    p90_minutes: float | None


@dataclass(frozen=True, kw_only=True)
class EtaBreach:
    reservation_id: str
    gpu_type: str
    latest: datetime = field(metadata=_doc("The broken guarantee"))
    started_at: datetime | None = field(metadata=_doc("null: it still waits"))
    cause: str


@dataclass(frozen=True, kw_only=True)
class EtaStatistics:
    gpu_type: str | None = field(metadata=_doc("null: all types together"))
    started: int = field(metadata=_doc("Requests that waited and have started"))
    expected_error: EtaErrors
    latest_error: EtaErrors
    in_interval: float | None = field(metadata=_doc("Share of them that started within the estimated interval"))
    confidence: float = field(metadata=_doc("The target of that share"))
    latest_broken: int = field(metadata=_doc("Requests that started, or still wait, after `latest`"))
    latest_broken_by_cause: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class EtaReportView:
    since: datetime
    statistics: list[EtaStatistics]
    breaches: list[EtaBreach] = field(metadata=_doc("For operators: each with its cause; others see only the counts"))


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    at: datetime
    used_gpus: int = field(metadata={"description": "In use from then on, by the planned ends (slots of a CPU node)"})


@dataclass(frozen=True, kw_only=True)
class PlanNode:
    name: str
    total_gpus: int
    offers: bool = field(metadata={"description": "Whether it is ready and open for new work"})
    steps: list[PlanStep]
    cordon_reason: str | None = field(default=None, metadata={"description": "The operator's reason; null: no cordon"})


@dataclass(frozen=True, kw_only=True)
class PlannedStart:
    """One queued request. Only its owner and operators get its id."""

    position: int
    gpu_count: int
    node_count: int
    latest: datetime | None
    expected: datetime | None
    nodes: list[str]
    mine: bool
    reservation_id: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class TypePlan:
    gpu_type: str
    nodes: list[PlanNode]
    waiting: list[PlannedStart]
    waiting_in_all: int = field(metadata={"description": "Only the first of a long queue are listed"})


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The coming hours, if every reservation runs to its planned end."""

    begins: datetime
    until: datetime
    gpu_types: list[TypePlan]
