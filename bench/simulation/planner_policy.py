"""Our planner as a policy, with its estimates: the real planner, with input as from the processor.

Ends and durations include the margin for preparation and teardown, so that guaranteed starts hold even if these are
slow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from bench.simulation.measurements import Estimate, any_fits
from bench.simulation.simulator import Held, Placement, State
from bench.simulation.traces import Cluster, Job
from gpudev.domain.cluster import Allocation, Node, NodeShare
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import Estimate as QueueEstimate
from gpudev.planning.queue.forecasting import Experience, Forecast
from gpudev.planning.queue.plan import Request
from support.planner.whole_plan import forecast, plan_queue

GPU_TYPE = "h100"
BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday."""
_FORECAST_AGAIN = timedelta(hours=1)


class Ours:
    def __init__(self, cluster: Cluster) -> None:
        self.waits: Mapping[ReservationId, QueueEstimate] = {}
        """The last estimates of all queued requests; the next plan keeps them."""
        self._nodes = [Node(_name(number), GPU_TYPE, cluster.units) for number in range(cluster.nodes)]
        self._margin = timedelta(seconds=cluster.margin)
        self._requests: dict[int, Request] = {}
        self._holdings: dict[int, Allocation] = {}

    def decide(self, state: State) -> Sequence[Placement]:
        plan = plan_queue(self._nodes, *self._facts(state), self._margin, promises=self.waits)
        self.waits = plan.estimates()
        return [
            (state.queue[number_of(start.reservation_id)], tuple(int(share.node) for share in start.shares))
            for start in plan.starts
        ]

    def forecast(self, state: State, experience: Experience) -> dict[ReservationId, Forecast]:
        return forecast(
            self._nodes,
            *self._facts(state),
            began={id_of(number): moment(held.since) for number, held in state.held.items()},
            latest={reservation_id: wait.latest for reservation_id, wait in self.waits.items()},
            came={id_of(number): moment(job.arrives) for number, job in state.queue.items()},
            experience={GPU_TYPE: experience},
            margin=self._margin,
        )

    def _facts(self, state: State) -> tuple[list[Allocation], list[Request], datetime]:
        """Cached per job: a run needs them many thousand times."""
        self._holdings = {n: self._holdings.get(n) or _holding(held) for n, held in state.held.items()}
        self._requests = {n: self._requests.get(n) or _request(job, state.cluster) for n, job in state.queue.items()}
        return list(self._holdings.values()), list(self._requests.values()), moment(state.now)


@dataclass(slots=True)
class OurEstimates:
    """Estimates at submit, learnt from earlier jobs: the forecasts start without history."""

    ours: Ours
    experience: Experience = field(default_factory=Experience)
    estimates: list[Estimate] = field(default_factory=list)
    """Of estimates at submit."""
    later: list[Estimate] = field(default_factory=list)
    """Of later estimates of queued requests."""
    _forecasts: dict[int, list[Forecast]] = field(default_factory=dict)

    def started(self, state: State, job: Job) -> None:
        for made in self._forecasts.pop(job.number, ()):
            self.experience = self.experience.after_start(made, moment(state.now))
            (self.estimates if made.is_newcomer else self.later).append(_estimate(job, made, state))

    def left(self, state: State, held: Held) -> None:
        job = held.job
        self.experience = self.experience.after_release(timedelta(seconds=job.used), timedelta(seconds=job.requested))

    def decided(self, state: State, arrived: Sequence[Job], until: int) -> None:
        if not arrived:
            return
        now = moment(state.now)
        for reservation_id, made in self.ours.forecast(state, self.experience).items():
            so_far = self._forecasts.setdefault(number_of(reservation_id), [])
            if not so_far or now - so_far[-1].made_at >= _FORECAST_AGAIN:
                so_far.append(made)


def _estimate(job: Job, forecast: Forecast, state: State) -> Estimate:
    prediction, waited = forecast.prediction, round(state.now - seconds_of(forecast.made_at))
    return Estimate(job, prediction.bound, prediction.expected, prediction.earliest, prediction.latest_likely, waited)


@dataclass(slots=True)
class AllowedIdle:
    """The time in which GPUs were idle although the rules would have allowed a start: next to all running jobs and all
    other planned starts. Computed here, with plain arithmetic."""

    ours: Ours
    seconds: int = 0
    looked: int = 0
    """How often a queued request would have fitted without the planned starts of others."""

    def started(self, state: State, job: Job) -> None: ...

    def left(self, state: State, held: Held) -> None: ...

    def decided(self, state: State, arrived: Sequence[Job], until: int) -> None:
        if any_fits(state):
            self.looked += 1
            if any_allowed(state, self.ours.waits):
                self.seconds += until - state.now


def any_allowed(state: State, waits: Mapping[ReservationId, QueueEstimate]) -> bool:
    """Whether any queued request could start now without delaying another planned start."""
    places: dict[int, list[tuple[float, float, int, int]]] = {node: [] for node in range(state.cluster.nodes)}
    """By node: (from, until, GPUs, owner)."""
    for held in state.held.values():
        for node in held.nodes:
            places[node].append((state.now, held.until, held.job.units, held.job.number))
    for number, job in state.queue.items():
        wait = waits[id_of(number)]
        if wait.latest is not None:
            start = seconds_of(wait.latest)
            for name in wait.nodes:
                places[int(name)].append((start, start + job.requested + state.cluster.margin, job.units, number))
    return any(_could_start(state, job, places) for job in state.queue.values())


def _could_start(state: State, job: Job, places: Mapping[int, list[tuple[float, float, int, int]]]) -> bool:
    end = state.until(job, state.now)
    fitting = 0
    for node in range(state.cluster.nodes):
        if state.free[node] < job.units or (job.nodes > 1 and state.free[node] != state.cluster.units):
            continue
        others = [place for place in places[node] if place[3] != job.number and place[0] < end]
        moments = {state.now, *(start for start, _, _, _ in others)}
        most = max(sum(gpus for start, until, gpus, _ in others if start <= at < until) for at in moments)
        fitting += most + job.units <= state.cluster.units
    return fitting >= job.nodes


def moment(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def seconds_of(at: datetime) -> float:
    return (at - BEGIN).total_seconds()


def id_of(number: int) -> ReservationId:
    return ReservationId(UUID(int=number))


def number_of(reservation_id: ReservationId) -> int:
    return reservation_id.int


def _name(number: int) -> str:
    return f"{number:04}"


def _request(job: Job, cluster: Cluster) -> Request:
    duration = timedelta(seconds=job.requested + cluster.margin)
    return Request(id_of(job.number), job.number, GPU_TYPE, job.units, job.nodes, duration, slots=True)


def _holding(held: Held) -> Allocation:
    shares = tuple(NodeShare(rank, _name(node), held.job.units) for rank, node in enumerate(held.nodes))
    return Allocation(id_of(held.job.number), GPU_TYPE, shares, moment(held.until))
