"""The system as its database shows it at one moment, and how that is told to Prometheus."""

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
    """Could be had now."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """By state: open, closed, not_ready."""
    by_status: Mapping[str, int] = field(default_factory=dict)
    """Reservations that are not released; `ending` are those that are over and being cleared away."""
    queue_length: int = 0
    queue_units: int = 0
    """What those who wait ask for, together."""
    oldest_wait_seconds: float = 0.0
    availability_age_seconds: float | None = None
    """None: never seen."""

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
    """Not over: by kind and state."""
    oldest_disk_operation_seconds: float = 0.0
    is_planning: bool = False
    examined_seconds_ago: float | None = None
    """Since whoever plans last looked at the queues with the cluster in sight."""


class SystemStateCollector(Collector):
    def __init__(self) -> None:
        self.state: SystemState | None = None
        """None: the database could not be asked. Nothing is told then but that."""
        self.staleness: Mapping[str, float] = {}
        """By kind of object: for how long the cluster has not been heard of."""

    def collect(self) -> Iterable[Metric]:
        yield _gauge("gpudev_database_up", "Whether the database answered", float(self.state is not None))
        stale = GaugeMetricFamily(
            "gpudev_cluster_watch_staleness_seconds", "For how long the cluster was not heard of", labels=["kind"]
        )
        for kind, seconds in self.staleness.items():
            stale.add_metric([kind], seconds)
        yield stale
        if self.state is not None:
            yield from _state_metrics(self.state)


def _state_metrics(system: SystemState) -> Iterator[Metric]:
    yield from _gpu_type_metrics(system.types)
    yield from _queue_metrics(system.queues)
    yield _gauge("gpudev_users_served", "People who hold GPUs or slots right now", system.users_served)
    yield _labelled_gauge("gpudev_disks", "Disks", ["state"], {(state,): n for state, n in system.disks.items()})
    yield _labelled_gauge(
        "gpudev_disk_operations_open", "Operations not over", ["kind", "state"], system.disk_operations
    )
    yield _gauge(
        "gpudev_disk_operation_oldest_seconds",
        "For how long the oldest operation on a disk that is not over has been",
        system.oldest_disk_operation_seconds,
    )
    yield _gauge("gpudev_planner_lease_held", "Whether some processor plans", float(system.is_planning))
    if system.examined_seconds_ago is not None:
        yield _gauge(
            "gpudev_planner_look_age_seconds",
            "Since somebody who plans last noted a look at the queues, with the cluster in sight",
            system.examined_seconds_ago,
        )


def _gpu_type_metrics(types: tuple[GpuTypeState, ...]) -> Iterator[Metric]:
    one = ["gpu_type"]
    yield _labelled_gauge(
        "gpudev_reservations",
        "Reservations that are not released",
        ["gpu_type", "status"],
        {(each.gpu_type, status): n for each in types for status, n in each.by_status.items()},
    )
    yield _labelled_gauge(
        "gpudev_queue_length", "Reservations that wait", one, {(e.gpu_type,): e.queue_length for e in types}
    )
    yield _labelled_gauge(
        "gpudev_queue_gpus", "What they ask for together", one, {(e.gpu_type,): e.queue_units for e in types}
    )
    yield _labelled_gauge(
        "gpudev_queue_oldest_wait_seconds",
        "For how long the one who has waited longest has waited",
        one,
        {(each.gpu_type,): each.oldest_wait_seconds for each in types},
    )
    states = ("used", "idle", "unavailable")
    yield _labelled_gauge(
        "gpudev_gpus",
        "GPUs (of CPU types: user slots), by what they do; unavailable are those on closed or lost nodes",
        ["gpu_type", "state"],
        {(each.gpu_type, state): getattr(each, state) for each in types for state in states},
    )
    yield _labelled_gauge(
        "gpudev_gpus_capacity", "GPUs there are", one, {(each.gpu_type,): each.capacity for each in types}
    )
    yield _labelled_gauge(
        "gpudev_nodes",
        "Nodes",
        ["gpu_type", "state"],
        {(each.gpu_type, state): n for each in types for state, n in each.nodes.items()},
    )
    yield _labelled_gauge(
        "gpudev_availability_age_seconds",
        "How old the recorded availability is",
        one,
        {(e.gpu_type,): e.availability_age_seconds for e in types if e.availability_age_seconds is not None},
    )


def _queue_metrics(queues: tuple[MessageQueueState, ...]) -> Iterator[Metric]:
    one = ["queue"]
    yield _labelled_gauge(
        "gpudev_queue_messages", "Messages that wait", one, {(each.queue,): each.messages for each in queues}
    )
    yield _labelled_gauge(
        "gpudev_queue_oldest_message_seconds",
        "For how long the oldest message has waited",
        one,
        {(each.queue,): each.oldest_seconds for each in queues},
    )
    yield _labelled_gauge(
        "gpudev_dead_letters", "Messages that were given up", one, {(e.queue,): e.dead_letters for e in queues}
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled_gauge(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
