"""What can never run is refused before anything is written, with a reason that names the next step."""

import math
from datetime import timedelta

import pytest

from gpudev.domain.cluster import GpuType, Node, load_catalogue
from gpudev.planning.reservations.admission import AdmissionRequest, Admitted, NotAdmitted, UserUsage, admit_request
from gpudev.settings import LimitSettings

CATALOGUE = load_catalogue()
H100_COUNTS = "1, 2, 4, 8, 16, 24, 32"
ONE_H100 = [Node("a", "h100", 8)]
MIXED = [*ONE_H100, Node("b", "t4", 4), Node("c", "cpu-x86", 3)]


def ask(
    gpu_type: str | None = "h100",
    count: int = 1,
    hours: float | None = None,
    *,
    nodes: list[Node] | None = None,
    limits: LimitSettings | None = None,
    usage: UserUsage | None = None,
    fixed: bool = False,
) -> Admitted | NotAdmitted:
    return admit_request(
        AdmissionRequest(gpu_type, count, hours),
        CATALOGUE,
        ONE_H100 if nodes is None else nodes,
        limits or LimitSettings(),
        usage or UserUsage(),
        fixed_cluster=fixed,
    )


def refusal(answer: Admitted | NotAdmitted) -> str:
    assert isinstance(answer, NotAdmitted)
    return f"{answer.field}: {answer.reason}"


@pytest.mark.parametrize(("gpu_type", "count", "node_count"), [
    ("h100", 1, 1), ("h100", 2, 1), ("h100", 4, 1), ("h100", 8, 1),
    ("h100", 16, 2), ("h100", 24, 3), ("h100", 32, 4), ("t4", 4, 1), ("cpu-x86", 0, 1),
])  # fmt: skip
def test_counts_that_a_type_has_are_admitted(gpu_type: str, count: int, node_count: int) -> None:
    assert ask(gpu_type, count) == Admitted(gpu_type, count, node_count, timedelta(hours=8))


@pytest.mark.parametrize(("gpu_type", "count", "reason"), [
    ("h100", 3, "invalid GPU count 3 for h100; ask for " + H100_COUNTS),
    ("h100", -1, "invalid GPU count -1 for h100; ask for " + H100_COUNTS),
    ("h100", 12, "12 GPUs of h100 cannot be had: above 8 GPUs only whole nodes can be; ask for " + H100_COUNTS),
    ("h100", 64, "64 GPUs are more than h100 offers: at most 32, as 4 whole nodes of 8"),
    ("t4", 8, "8 GPUs are more than t4 offers: at most 4, all of one node"),
    ("h100", 0, f"h100 is a GPU type; ask for {H100_COUNTS} GPUs, or name a CPU type for 0"),
    ("cpu-x86", 1, "cpu-x86 has no GPUs; ask for 0"),
])  # fmt: skip
def test_other_counts_are_refused_with_what_to_ask_for(gpu_type: str, count: int, reason: str) -> None:
    assert refusal(ask(gpu_type, count)) == f"gpu_count: {reason}"


@pytest.mark.parametrize("name", ["H100", "h100", "H100".title()])
def test_a_type_is_found_in_any_case(name: str) -> None:
    assert ask(name) == ask("h100")


def test_a_single_node_of_sixteen_gives_sixteen_on_one_node() -> None:
    big = GpuType("big", "x.16", 16, 1, 1)
    answer = admit_request(AdmissionRequest("big", 16), {"big": big}, [], LimitSettings(), UserUsage())
    assert isinstance(answer, Admitted)
    assert answer.node_count == 1


def test_an_unknown_type_is_answered_with_the_known_ones() -> None:
    assert refusal(ask("h300")) == (
        "gpu_type: GPU type 'h300' is unknown; available: t4, l4, a10g, a100, h100, h200, b200, cpu-x86, cpu-arm"
    )


@pytest.mark.parametrize(("hours", "reason"), [
    (math.nan, "the duration must be a number of hours"),
    (math.inf, "the duration must be a number of hours"),
    (-math.inf, "the duration must be a number of hours"),
    (0, "the duration must be more than 0 hours"),
    (-3, "the duration must be more than 0 hours"),
    (0.0001, "0.0001 hours is too short; the least is 0.001"),
    (24.5, "24.5 hours is too long; the most is 24, and a running one can be extended"),
    (1e300, "1e+300 hours is too long; the most is 24, and a running one can be extended"),
])  # fmt: skip
def test_hours_out_of_range_are_refused(hours: float, reason: str) -> None:
    assert refusal(ask(hours=hours)) == f"duration_hours: {reason}"


def test_hours_at_the_limits_are_admitted_and_absent_ones_are_the_default() -> None:
    durations = [answer.duration for hours in (None, 0.001, 24) if isinstance(answer := ask(hours=hours), Admitted)]
    assert durations == [timedelta(hours=8), timedelta(seconds=3.6), timedelta(hours=24)]


class TestWithoutAType:
    def test_the_only_gpu_type_with_nodes_is_meant(self) -> None:
        answer = ask(None, 2, nodes=[*ONE_H100, Node("c", "cpu-x86", 3)])
        assert isinstance(answer, Admitted)
        assert answer.gpu_type == "h100"

    def test_no_gpus_mean_the_only_cpu_type_with_nodes(self) -> None:
        answer = ask(None, 0, nodes=MIXED)
        assert isinstance(answer, Admitted)
        assert answer.gpu_type == "cpu-x86"

    def test_several_are_listed(self) -> None:
        assert refusal(ask(None, 1, nodes=MIXED)) == "gpu_type: several GPU types have nodes, so name one of h100, t4"

    def test_none_is_answered_with_the_known_ones(self) -> None:
        assert refusal(ask(None, 0)) == "gpu_type: no CPU type has nodes right now, so name one of cpu-x86, cpu-arm"

    def test_a_node_of_a_type_that_is_in_no_catalogue_is_no_choice(self) -> None:
        assert refusal(ask(None, 1, nodes=[Node("a", "homemade", 8)])).startswith("gpu_type: no GPU type has nodes")


class TestOnAFixedCluster:
    @pytest.mark.parametrize(("gpu_type", "count", "reason"), [
        ("t4", 1, "gpu_type: there is no t4 node here; there is h100"),
        ("h100", 16, "gpu_count: 16 GPUs take 2 whole h100 nodes of 8; there is 1 here"),
        ("h100", 32, "gpu_count: 32 GPUs take 4 whole h100 nodes of 8; there is 1 here"),
        ("cpu-x86", 0, "gpu_type: there is no cpu-x86 node here; there is h100"),
    ])  # fmt: skip
    def test_what_its_nodes_can_never_hold_is_refused(self, gpu_type: str, count: int, reason: str) -> None:
        assert refusal(ask(gpu_type, count, fixed=True)) == reason
        assert isinstance(ask(gpu_type, count, fixed=False), Admitted), "an elastic cluster may grow"

    @pytest.mark.parametrize(("count", "reason"), [
        (3, "invalid GPU count 3 for h100; ask for 1, 2, 4, 8"),
        (0, "h100 is a GPU type; ask for 1, 2, 4, 8 GPUs, or name a CPU type for 0"),
        (100, "100 GPUs are more than h100 offers: at most 8, all of one node"),
    ])  # fmt: skip
    def test_an_error_names_only_what_its_nodes_can_ever_give(self, count: int, reason: str) -> None:
        assert refusal(ask("h100", count, fixed=True)) == f"gpu_count: {reason}"

    def test_an_unknown_type_is_answered_with_those_that_are_here(self) -> None:
        assert refusal(ask("h300", fixed=True)) == "gpu_type: GPU type 'h300' is unknown; available: h100"

    def test_a_small_node_gives_what_it_has(self) -> None:
        small = [Node("a", "h100", 3)]
        assert isinstance(ask("h100", 2, nodes=small, fixed=True), Admitted)
        assert refusal(ask("h100", 4, nodes=small, fixed=True)) == (
            "gpu_count: 4 GPUs fit on no node here; the largest h100 node has 3"
        )

    def test_a_gang_needs_nodes_of_the_full_size(self) -> None:
        nodes = [Node("a", "h100", 8), Node("b", "h100", 4)]
        assert isinstance(ask("h100", 16, nodes=nodes, fixed=True), NotAdmitted)
        assert isinstance(ask("h100", 16, nodes=[*nodes, Node("c", "h100", 8)], fixed=True), Admitted)

    def test_nodes_that_are_down_or_busy_may_come_back(self) -> None:
        nodes = [Node("a", "h100", 8, ready=False, foreign_units=8)]
        assert isinstance(ask("h100", 8, nodes=nodes, fixed=True), Admitted)

    def test_nothing_at_all_is_said_plainly(self) -> None:
        assert refusal(ask("h100", 1, nodes=[], fixed=True)).endswith("there is no node at all")


class TestLimits:
    def test_too_many_waiting_requests(self) -> None:
        limits = LimitSettings(max_queued_per_user=2)
        assert isinstance(ask(limits=limits, usage=UserUsage(queued=1)), Admitted)
        answer = ask(limits=limits, usage=UserUsage(queued=2))
        assert isinstance(answer, NotAdmitted)
        assert answer.limit
        assert answer.reason == "you have 2 waiting requests and may have 2; cancel one first"

    def test_too_many_gpus(self) -> None:
        limits = LimitSettings(max_gpus_per_user=8)
        assert isinstance(ask(count=4, limits=limits, usage=UserUsage(gpus=4)), Admitted)
        answer = ask(count=8, limits=limits, usage=UserUsage(gpus=4))
        assert isinstance(answer, NotAdmitted)
        assert answer.limit
        assert answer.reason == "you have reserved or requested 4 GPUs; the limit is 8, so 4 are left"

    def test_more_gpus_than_anybody_may_have_is_no_matter_of_time(self) -> None:
        answer = ask(count=8, limits=LimitSettings(max_gpus_per_user=4))
        assert isinstance(answer, NotAdmitted)
        assert not answer.limit

    def test_cpu_slots_are_no_gpus(self) -> None:
        limits = LimitSettings(max_gpus_per_user=0)
        assert isinstance(ask("cpu-x86", 0, limits=limits), Admitted)
