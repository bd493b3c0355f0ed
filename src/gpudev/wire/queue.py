"""Plans and estimate statistics on the wire."""

from dataclasses import dataclass, field
from datetime import datetime


def _doc(text: str) -> dict[str, str]:
    return {"description": text}


@dataclass(frozen=True, kw_only=True)
class EtaErrors:
    median_minutes: float | None = field(metadata=_doc("Of the absolute error; null: nobody has started"))
    p90_minutes: float | None


@dataclass(frozen=True, kw_only=True)
class EtaBreach:
    reservation_id: str
    gpu_type: str
    latest: datetime = field(metadata=_doc("The promise that was broken"))
    started_at: datetime | None = field(metadata=_doc("null: it waits still"))
    cause: str


@dataclass(frozen=True, kw_only=True)
class EtaStatistics:
    gpu_type: str | None = field(metadata=_doc("null: all types together"))
    started: int = field(metadata=_doc("How many had to wait and have started"))
    expected_error: EtaErrors
    latest_error: EtaErrors
    in_interval: float | None = field(metadata=_doc("Share of them that started in the interval they were told"))
    confidence: float = field(metadata=_doc("What that share is meant to be"))
    latest_broken: int = field(metadata=_doc("How many started, or still wait, later than `latest`"))
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
    cordon_reason: str | None = field(
        default=None, metadata={"description": "What the operator who closed it says; null: none has"}
    )


@dataclass(frozen=True, kw_only=True)
class PlannedStart:
    """One who waits. Whose it is only its owner and operators learn."""

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
    """The coming hours, if everybody stays to their planned end."""

    begins: datetime
    until: datetime
    gpu_types: list[TypePlan]
