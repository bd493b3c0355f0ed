"""State of the whole system at one moment, from the database, and its Prometheus collector."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class GpuTypeState:
    """One GPU type, in GPUs or a CPU type's user slots."""

    gpu_type: str
    capacity: int = 0
    used: int = 0
    """Held by reservations."""
    idle: int = 0
    """Free for a new reservation."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """By state: open, closed, not_ready."""
    by_status: Mapping[str, int] = field(default_factory=dict)
    """Reservations that are not released; `ending`: those that have ended and are being torn down."""
    queue_length: int = 0
    queue_units: int = 0
    """The sum of what queued requests ask for."""
    oldest_wait_seconds: float = 0.0
    availability_age_seconds: float | None = None
    """None: never observed."""

    @property
    def unavailable(self) -> int:
        return max(0, self.capacity - self.used - self.idle)


@dataclass(frozen=True, slots=True)
class MessageQueueState:
    queue: str
    messages: int
    oldest_seconds: float
    dead_letters: int


@dataclass(frozen=True, slots=True)
class SystemState:
    at: datetime
    types: tuple[GpuTypeState, ...] = ()
    queues: tuple[MessageQueueState, ...] = ()
    users_served: int = 0
    disks: Mapping[str, int] = field(default_factory=dict)
    """By state."""
    disk_operations: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Unfinished ones, by kind and state."""
    oldest_disk_operation_seconds: float = 0.0
    is_planning: bool = False
    examined_seconds_ago: float | None = None
    """Since a processor last recorded that it examined the queues with a known cluster state. None: never."""


class SystemStateCollector(Collector):
    def __init__(self) -> None:
        self.state: SystemState | None = None
        """None: the database does not answer. Only `gpudev_database_up` and the staleness are exposed then."""
        self.staleness: Mapping[str, float] = {}
        """By kind of object: seconds since the cluster last confirmed its state."""

    def collect(self) -> Iterable[Metric]:
        yield _gauge("gpudev_database_up", "Whether the database answered", float(self.state is not None))
        stale = GaugeMetricFamily(
            "gpudev_cluster_watch_staleness_seconds", "Time since the cluster last confirmed its state", labels=["kind"]
        )
        for kind, seconds in self.staleness.items():
            stale.add_metric([kind], seconds)
        yield stale
        if self.state is not None:
            yield from _state_metrics(self.state)


def _state_metrics(system: SystemState) -> Iterator[Metric]:
    yield from _gpu_type_metrics(system.types)
    yield from _queue_metrics(system.queues)
    yield _gauge("gpudev_users_served", "Users who hold GPUs or slots now", system.users_served)
    yield _labelled_gauge("gpudev_disks", "Disks", ["state"], {(state,): n for state, n in system.disks.items()})
    yield _labelled_gauge(
        "gpudev_disk_operations_open", "Unfinished disk operations", ["kind", "state"], system.disk_operations
    )
    yield _gauge(
        "gpudev_disk_operation_oldest_seconds",
        "Age of the oldest unfinished disk operation",
        system.oldest_disk_operation_seconds,
    )
    yield _gauge(
        "gpudev_planner_lease_held", "Whether any processor holds the planning lease", float(system.is_planning)
    )
    if system.examined_seconds_ago is not None:
        yield _gauge(
            "gpudev_planner_examination_age_seconds",
            "Time since a processor last recorded that it examined queues and cluster together",
            system.examined_seconds_ago,
        )


def _gpu_type_metrics(types: tuple[GpuTypeState, ...]) -> Iterator[Metric]:
    label_names = ["gpu_type"]
    yield _labelled_gauge(
        "gpudev_reservations",
        "Reservations that are not released",
        ["gpu_type", "status"],
        {(each.gpu_type, status): n for each in types for status, n in each.by_status.items()},
    )
    yield _labelled_gauge(
        "gpudev_queue_length", "Queued requests", label_names, {(e.gpu_type,): e.queue_length for e in types}
    )
    yield _labelled_gauge(
        "gpudev_queue_gpus",
        "GPUs that queued requests ask for",
        label_names,
        {(e.gpu_type,): e.queue_units for e in types},
    )
    yield _labelled_gauge(
        "gpudev_queue_oldest_wait_seconds",
        "Wait of the longest waiting request",
        label_names,
        {(each.gpu_type,): each.oldest_wait_seconds for each in types},
    )
    states = ("used", "idle", "unavailable")
    yield _labelled_gauge(
        "gpudev_gpus",
        "GPUs (of CPU types: user slots) by state; unavailable are those on closed or lost nodes",
        ["gpu_type", "state"],
        {(each.gpu_type, state): getattr(each, state) for each in types for state in states},
    )
    yield _labelled_gauge(
        "gpudev_gpus_capacity", "GPUs in total", label_names, {(each.gpu_type,): each.capacity for each in types}
    )
    yield _labelled_gauge(
        "gpudev_nodes",
        "Nodes",
        ["gpu_type", "state"],
        {(each.gpu_type, state): n for each in types for state, n in each.nodes.items()},
    )
    yield _labelled_gauge(
        "gpudev_availability_age_seconds",
        "Age of the recorded availability",
        label_names,
        {(e.gpu_type,): e.availability_age_seconds for e in types if e.availability_age_seconds is not None},
    )


def _queue_metrics(queues: tuple[MessageQueueState, ...]) -> Iterator[Metric]:
    label_names = ["queue"]
    yield _labelled_gauge(
        "gpudev_queue_messages", "Waiting messages", label_names, {(each.queue,): each.messages for each in queues}
    )
    yield _labelled_gauge(
        "gpudev_queue_oldest_message_seconds",
        "Age of the oldest waiting message",
        label_names,
        {(each.queue,): each.oldest_seconds for each in queues},
    )
    yield _labelled_gauge(
        "gpudev_dead_letters",
        "Messages that failed too often",
        label_names,
        {(e.queue,): e.dead_letters for e in queues},
    )


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _labelled_gauge(name: str, help_text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
