"""What is remembered between two looks is what would be found anew."""

from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudev.adapters.kubernetes.cache.cluster_cache import ClusterCache
from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServiceRecord
from gpudev.adapters.kubernetes.client.kubernetes_api import connect_api
from gpudev.adapters.kubernetes.cluster import IncrementalState
from gpudev.adapters.kubernetes.observation.node_state import compute_node_states
from gpudev.adapters.kubernetes.observation.server_state import compute_server_state
from gpudev.domain.cluster import load_catalogue
from gpudev.domain.ids import new_reservation_id
from support.clock import ManualClock
from support.kubernetes.objects import (
    NOW,
    RID,
    SETTINGS,
    Object,
    ended,
    node,
    own_pod,
    pod,
    pod_record,
    ready_pod,
    service,
    service_record,
)

CATALOGUE = load_catalogue()
OTHER = new_reservation_id()


class World:
    """A mirror that is told of everything by hand, as its watch would."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.mirror = ClusterCache(connect_api(SETTINGS), SETTINGS, self.clock)
        self.seeing = IncrementalState(self.mirror, CATALOGUE, SETTINGS)
        self.pods: dict[str, PodRecord] = {}
        self.services: dict[str, ServiceRecord] = {}
        self._by_kind = {one.kind.name: one for one in self.mirror.reflectors}

    def tell(self, what: str, item: Object) -> None:
        self._by_kind[item["kind"]]._handle_event(what, item)
        if item["kind"] == "Node":
            return
        name, is_pod = item["metadata"]["name"], item["kind"] == "Pod"
        if what == "DELETED":
            (self.pods if is_pod else self.services).pop(name, None)
        elif is_pod:
            self.pods[name] = pod_record(item)
        else:
            self.services[name] = service_record(item)

    def servers(self) -> dict[Any, Any]:
        return {
            rid: self.seeing.compute_server(self.mirror.get_server_parts(rid), self.clock.now())
            for rid in self.mirror.reservation_ids()
        }

    def check(self) -> None:
        for name in ("n1", "n2"):
            assert set(self.mirror.pods_on(name)) == {one for one in self.pods.values() if one.node == name}
        for rid in (RID, OTHER):
            parts = self.mirror.get_server_parts(rid)
            assert set(parts.pods) == {
                one for one in self.pods.values() if one.member and one.member.reservation_id == rid
            }
            assert set(parts.services) == {one for one in self.services.values() if one.reservation_id == rid}
        expected = compute_node_states(self.mirror.nodes.values(), self.mirror.pods_on, CATALOGUE, SETTINGS)
        assert self.seeing.compute_nodes() == expected
        now, nodes = self.clock.now(), self.mirror.nodes
        for rid, facts in self.servers().items():
            assert facts == compute_server_state(self.mirror.get_server_parts(rid), nodes, now, SETTINGS)


def test_a_server_that_stays_ready_is_worked_out_once() -> None:
    world = World()
    for item in (node("n1"), ready_pod(), service()):
        world.tell("ADDED", item)
    first = world.servers()[RID]
    world.clock.move(seconds=60)
    assert world.servers()[RID] is first
    world.tell("MODIFIED", node("n1", ready="Unknown", since=0))
    assert world.servers()[RID] is not first
    world.check()


def test_a_starting_server_is_worked_out_as_time_passes() -> None:
    world = World()
    for item in (node("n1"), own_pod(init=ended(0, at=0), main={"waiting": {"reason": "PodInitializing"}})):
        world.tell("ADDED", item)
    steps = []
    for _ in range(3):
        steps.append(world.servers()[RID].state.step)
        world.clock.move(seconds=25)
    assert steps == [f"pulling image pytorch:2{told}" for told in ("", ", 20 s", ", 40 s")]


def test_the_log_names_a_node_without_a_type_once_and_again_when_the_reason_changes() -> None:
    world = World()
    with structlog.testing.capture_logs() as said:
        world.tell("ADDED", node("n1", gpu_type=None))
        for _ in range(3):
            world.seeing.compute_nodes()
        world.tell("MODIFIED", node("n1", gpu_type=None, ready="False"))
        world.seeing.compute_nodes()
        assert len(said) == 1
        world.tell("MODIFIED", node("n1", gpu_type="h1000"))
        world.seeing.compute_nodes()
    assert [one["node"] for one in said if one["event"] == "node.ignored"] == ["n1", "n1"]


def test_the_log_names_taints_that_somebody_closed_a_node_with_once() -> None:
    world = World()
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("team", "nvidia.com/gpu")]
    away = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    with structlog.testing.capture_logs() as said:
        world.tell("ADDED", node("n1", taints=[away]))
        world.seeing.compute_nodes()
        world.tell("MODIFIED", node("n1", taints=taints))
        for gpus in (8, 7):
            world.tell("MODIFIED", node("n1", gpus=gpus, taints=taints))
            world.seeing.compute_nodes()
    assert [(one["node"], one["taints"]) for one in said if one["event"] == "node.blocked_by_taint"] == [
        ("n1", ["team"])
    ]


def test_a_trace_is_forgotten_after_a_while() -> None:
    world = World()
    world.tell("ADDED", node("n1"))
    world.tell("ADDED", ready_pod())
    world.tell("DELETED", ready_pod(deleting=True))
    assert world.servers()[RID].state.reason == "its pod on n1 was deleted from outside gpu-dev"
    world.clock.move(minutes=11)
    assert world.servers() == {}


def test_whoever_is_taken_down_by_us_leaves_no_trace_and_the_next_of_that_name_does() -> None:
    world = World()
    world.tell("ADDED", ready_pod())
    world.mirror.expect_removal(RID)
    world.tell("DELETED", ready_pod(deleting=True))
    assert world.servers() == {}
    again = ready_pod()
    again["metadata"]["uid"] = "another"
    world.tell("ADDED", again)
    world.tell("DELETED", again)
    assert len(world.mirror.get_server_parts(RID).gone) == 1


def test_a_pod_that_is_made_again_takes_its_predecessors_trace_away() -> None:
    world = World()
    for item in (node("n1"), service()):
        world.tell("ADDED", item)
    world.tell("ADDED", ready_pod())
    world.tell("DELETED", ready_pod(deleting=True))
    again = ready_pod()
    again["metadata"]["uid"] = "another"
    world.tell("ADDED", again)
    assert world.servers()[RID].state.connection is not None


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_remembered_is_what_would_be_found_anew(data: st.DataObject) -> None:
    world = World()
    names = st.sampled_from(["n1", "n2"])
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["node", "own", "foreign", "service", "time", "let go"])):
            case "node":
                ready = data.draw(st.sampled_from(["True", "Unknown"]))
                item = node(data.draw(names), ready=ready, gpu_type=data.draw(st.sampled_from(["h100", None])))
            case "own":
                rank, where = data.draw(st.integers(0, 1)), data.draw(names)
                rid = data.draw(st.sampled_from([RID, OTHER]))
                item = data.draw(st.sampled_from([ready_pod, own_pod]))(rank=rank, members=2, node=where, rid=rid)
            case "foreign":
                item = pod(
                    data.draw(st.sampled_from(["a", "b"])), node=data.draw(names), gpus=data.draw(st.integers(1, 4))
                )
            case "service":
                item = service(rid=data.draw(st.sampled_from([RID, OTHER])))
            case "let go":
                world.mirror.expect_removal(data.draw(st.sampled_from([RID, OTHER])))
                continue
            case _:
                world.clock.move(minutes=data.draw(st.integers(1, 6)))
                world.check()
                continue
        world.tell(data.draw(st.sampled_from(["ADDED", "MODIFIED", "DELETED"])), item)
        world.check()
