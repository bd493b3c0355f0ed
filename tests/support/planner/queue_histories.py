"""Lives of a queue for the live plan's tests: people come, leave early, give up or overstay, and time passes. The books
kept here are plain; whatever the plan says is held to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import strategies as st

from gpudev.domain.cluster import Allocation, Node
from gpudev.domain.ids import ReservationId
from gpudev.planning.queue.incremental_planner import IncrementalPlanner
from gpudev.planning.queue.plan import Queued, Request, Start
from support.planner.reference_planner import free_at, is_home, places_now, slots_held, slots_planned
from support.planner.situations import MARGIN, NOW, Situation, ask, disk_in, h100, hours
from support.planner.whole_plan import Plan, end_reservation, wait_of

Happening = tuple[str, int, float]
"""What ("come", "leave", "give up", "overstay", "pass"), which, and how long."""
MakeLive = Callable[..., IncrementalPlanner]
SHAPES = [(1, 1), (1, 1), (2, 1), (4, 1), (4, 1), (8, 1), (8, 2), (8, 3)]
NODES = (h100("a", zone="zone-a"), h100("b", zone="zone-b"), h100("c", zone="zone-b"))
DISKS = [None, disk_in("zone-a"), None, disk_in("zone-b"), None, disk_in("zone-a", move=timedelta(minutes=5)), None]


@dataclass
class Life:
    make: MakeLive
    nodes: tuple[Node, ...] = NODES
    now: datetime = NOW
    running: dict[ReservationId, Allocation] = field(default_factory=dict)
    queue: dict[ReservationId, Request] = field(default_factory=dict)
    told: dict[ReservationId, datetime] = field(default_factory=dict)
    staying: set[ReservationId] = field(default_factory=set)
    """Who will not go when their time is over."""
    kept: bool = True
    """Whether everybody has gone in time, so that promises can be kept."""
    said: list[Start | Queued] = field(default_factory=list)
    everybody: dict[ReservationId, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.live = self.make("h100", self.nodes, [], [], now=self.now, margin=MARGIN)

    def happen(self, what: str, which: int, long: float) -> None:
        match what:
            case "come":
                units, nodes = SHAPES[which % len(SHAPES)]
                disk = DISKS[which % len(DISKS)] if nodes == 1 else None
                number, priority = len(self.everybody) + 1, int(which % 7 == 0)
                request = ask(number, units, long, nodes=nodes, priority=priority, anchor=disk)
                self.queue[request.reservation_id] = self.everybody[request.reservation_id] = request
                # A priority goes before what others were promised.
                self.told = {
                    who: at for who, at in self.told.items() if self.everybody[who].priority >= request.priority
                }
                self.tell_arrival(request)
            case "leave" if self.running:
                self.end(sorted(self.running)[which % len(self.running)])
            case "give up" if self.queue:
                who = sorted(self.queue)[which % len(self.queue)]
                del self.queue[who]
                self.told.pop(who, None)
                self.tell_end(who)
            case "overstay" if self.running:
                self.staying.add(sorted(self.running)[which % len(self.running)])
            case "pass":
                # Not to the very moment at which somebody overstays: it may be that they go in that moment.
                self.let_time_pass(self.now + hours(long) + timedelta(seconds=7 * bool(self.staying)))
            case "replan":
                self.live.replan(self.now)
                self.tell_time()
            case "be done sooner" if self.running:
                who = sorted(self.running)[which % len(self.running)]
                until = min(self.running[who].until or self.now, self.now + hours(long) / 4)
                self.running[who] = replace(self.running[who], until=until)
                self.tell_time()
            case _:
                pass

    def end(self, who: ReservationId) -> None:
        del self.running[who]
        self.staying.discard(who)
        self.tell_end(who)

    def tell_arrival(self, request: Request) -> None:
        self.hear([self.live.add_request(request, self.now)])
        if request.priority:  # everybody was planned anew: others may have become free to start
            self.tell_time()

    def tell_end(self, who: ReservationId) -> None:
        self.hear(end_reservation(self.live, who, self.now))

    def tell_time(self) -> None:
        self.hear(self.live.collect_starts(self.now))

    def let_time_pass(self, to: datetime) -> None:
        while True:
            ends = {h.until: who for who, h in self.running.items() if h.until is not None and who not in self.staying}
            wakes = self.live.next_at
            moment = min([to, *(end for end in ends if end is not None), *([wakes] if wakes else [])])
            self.now = max(self.now, moment)
            if any(
                h.until is not None and h.until <= self.now for who, h in self.running.items() if who in self.staying
            ):
                self.kept = False
            if moment in ends and moment <= to:
                self.end(ends[moment])
            elif wakes is not None and wakes <= self.now and moment < to:
                before = len(self.queue)
                self.tell_time()
                if len(self.queue) == before and self.live.next_at == wakes:
                    raise AssertionError("it wants to be woken for nothing")
            else:
                self.tell_time()
                return

    def hear(self, answers: Sequence[Start | Queued]) -> None:
        for answer in answers:
            self.said.append(answer)
            if isinstance(answer, Start):
                request = self.queue.pop(answer.reservation_id)
                bound = self.told.pop(answer.reservation_id, self.now)
                assert self.now <= bound or not self.kept, "started later than told"
                until = self.now + request.duration
                self.running[answer.reservation_id] = Allocation(answer.reservation_id, "h100", answer.shares, until)
        self.check_gpus()

    def situation(self) -> Situation:
        return Situation(self.nodes, tuple(self.running.values()), tuple(self.queue.values()), self.now)

    def check_gpus(self) -> None:
        for node in self.nodes:
            gpus = [g for h in self.running.values() for s in h.shares if s.node == node.name for g in s.gpu_indices]
            assert len(gpus) == len(set(gpus)), "two on one GPU"
            assert set(gpus) <= set(range(node.units)), "a GPU that is not there"

    def check_gangs(self) -> None:
        for answer in self.said:
            if isinstance(answer, Start):
                request = self.everybody[answer.reservation_id]
                names = {share.node for share in answer.shares}
                assert len(names) == len(answer.shares) == request.node_count, "half a gang"
                assert all(len(share.gpu_indices) == request.units_per_node for share in answer.shares)

    def check_zones(self) -> None:
        nodes = {node.name: node for node in self.nodes}
        for answer in [*self.said, *self.live.iter_queued()]:
            request = self.everybody[answer.reservation_id]
            names = answer.estimate.nodes if isinstance(answer, Queued) else [share.node for share in answer.shares]
            is_movable = request.zone_constraint is not None and request.zone_constraint.move_time is not None
            assert is_movable or all(is_home(nodes[name], request) for name in names), "where its disk cannot be"

    def check_promises(self) -> None:
        for wait in self.live.iter_queued():
            latest = wait.estimate.latest
            assert latest is not None
            bound = self.told.get(wait.reservation_id, latest)
            assert latest <= bound or not self.kept, "planned later than told"
            self.told[wait.reservation_id] = latest

    def check_places(self) -> None:
        situation, plan = self.situation(), Plan((), tuple(self.live.iter_queued()))
        slots = slots_held(situation) + slots_planned(situation, plan)
        nodes = {node.name: node for node in self.nodes}
        for slot in slots:
            assert free_at(nodes[slot.node], slots, max(slot.begins, self.now)) >= 0, "a node is overfull"

    def check_idle(self) -> None:
        situation, plan = self.situation(), Plan((), tuple(self.live.iter_queued()))
        slots = slots_held(situation) + slots_planned(situation, plan)
        for request in self.queue.values():
            others = [slot for slot in slots if slot.who != request.reservation_id]
            assert not places_now(situation, others, request), "idle though somebody could start"

    def check_positions(self) -> None:
        waits = list(self.live.iter_queued())
        assert [w.reservation_id for w in waits] == [r.reservation_id for r in self.situation().ordered()]
        assert [w.estimate.position for w in waits] == list(range(1, len(waits) + 1)), "positions are no permutation"
        assert all(wait_of(self.live, wait.reservation_id) == wait for wait in waits)


@dataclass
class LifeByTurns(Life):
    """The plan is never told what happened, only what is."""

    def tell_arrival(self, request: Request) -> None:
        self.tell_time()

    def tell_end(self, who: ReservationId) -> None:
        self.tell_time()

    def tell_time(self) -> None:
        # As they come from a database: equal to what is known, but not the same objects, and in any order.
        holdings = [replace(holding) for holding in reversed(self.running.values())]
        queue = [replace(request) for request in reversed(self.queue.values())]
        turn = self.live.update(self.nodes, holdings, queue, self.now)
        self.hear([*turn.starts, *turn.waits])
        newly_told = {wait.reservation_id: wait for wait in turn.waits}
        assert all(newly_told[w.reservation_id] == w for w in self.live.iter_queued() if w.reservation_id in newly_told)
        assert not turn.remade or len(newly_told) == len(self.queue)


LIVES = st.lists(
    st.tuples(
        st.sampled_from(["come"] * 6 + ["leave"] * 3 + ["give up", "pass", "pass", "replan"]),
        st.integers(0, 20),
        st.sampled_from([0.25, 0.5, 1, 1, 2, 3, 5]),
    ),
    min_size=4,
    max_size=25,
)
LIVES_BY_TURNS = st.lists(
    st.tuples(
        st.sampled_from(["come"] * 6 + ["leave"] * 3 + ["give up", "pass", "pass", "be done sooner", "be done sooner"]),
        st.integers(0, 20),
        st.sampled_from([0.25, 0.5, 1, 1, 2, 3, 5]),
    ),
    min_size=4,
    max_size=25,
)
LIVES_WITH_LATECOMERS = st.lists(
    st.tuples(
        st.sampled_from(["come"] * 6 + ["leave"] * 2 + ["overstay"] * 2 + ["give up", "pass", "pass"]),
        st.integers(0, 20),
        st.sampled_from([0.25, 0.5, 1, 1, 2, 3, 5]),
    ),
    min_size=4,
    max_size=25,
)
