"""How far a dev server is, and what it died of, from its pods as the API server writes them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpudev.adapters.kubernetes.cache.object_records import GonePod, ServerParts
from gpudev.adapters.kubernetes.observation.server_state import LogSource, ServerObservation, compute_server_state
from gpudev.domain.cluster import NodeShare
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.cluster import ServerPhase
from support.kubernetes.objects import (
    HOST_KEY,
    NOW,
    RID,
    SETTINGS,
    Object,
    condition,
    ended,
    node_record,
    own_pod,
    pod_record,
    ready_pod,
    running,
    service,
    service_record,
    waiting,
)

NODES = {"n1": node_record("n1"), "n2": node_record("n2")}


def see(
    *pods: Object, gone: Sequence[Object] = (), services: Sequence[Object] | None = None, **more: Any
) -> ServerObservation:
    parts = ServerParts(
        RID,
        [pod_record(one) for one in pods],
        [GonePod(pod_record(one), NOW, was_observed=True) for one in gone],
        [service_record(one) for one in ([service()] if services is None else services)],
    )
    return compute_server_state(parts, more.pop("nodes", NODES), NOW, replace(SETTINGS, **more))


def step_of(*pods: Object, **more: Any) -> str:
    seen = see(*pods, **more).state
    assert seen.phase is ServerPhase.STARTING, seen
    assert seen.step is not None
    return seen.step


def reason_of(*pods: Object, **more: Any) -> str:
    seen = see(*pods, **more).state
    assert seen.phase is ServerPhase.DEAD, seen
    assert not seen.is_restartable
    assert seen.reason is not None
    return seen.reason


# On its way


def test_a_ready_pod_with_a_node_port_is_ready_with_the_way_in() -> None:
    seen = see(ready_pod()).state
    assert seen.phase is ServerPhase.READY
    assert seen.connection == SshEndpoint("10.0.0.1", 31234, "dev", HOST_KEY)
    assert seen.node_shares == (NodeShare(0, "n1", 2),)


def test_ready_needs_the_service_and_its_port() -> None:
    lost = see(ready_pod(), services=[]).state
    assert (lost.phase, lost.is_restartable) == (ServerPhase.DEAD, True), "it is made again"
    assert "Service of its ssh server" in (lost.reason or "")
    assert "opening the route" in step_of(ready_pod(), services=[service(port=None)])


def test_ready_needs_a_host_key() -> None:
    made = ready_pod()
    del made["metadata"]["annotations"]
    assert "opening the route" in step_of(made)


def test_a_pod_without_a_node_waits_for_it() -> None:
    assert step_of(own_pod(node=None)) == "waiting for its node"


def test_an_unschedulable_pod_says_what_the_scheduler_says() -> None:
    said = condition("PodScheduled", "False", 10, "Unschedulable", "0/3 nodes are available")
    assert step_of(own_pod(node=None, scheduled=said)) == "waiting for its node: 0/3 nodes are available"


def test_network_and_volumes_come_first() -> None:
    made = own_pod(conditions=[condition("PodReadyToStartContainers", "False")])
    assert step_of(made) == "setting up network and volumes on n1, 1 min"


@pytest.mark.parametrize(
    ("since", "told"), [(3, ""), (12, ", 10 s"), (39, ", 20 s"), (44, ", 40 s"), (61, ", 1 min"), (200, ", 3 min")]
)
def test_pulling_tells_how_long_it_has_been_at_it(since: float, told: str) -> None:
    made = own_pod(init=ended(0, "Completed", at=since), main=waiting("PodInitializing"))
    assert step_of(made) == f"pulling image pytorch:2{told}"


def test_the_init_image_is_pulled_first() -> None:
    made = own_pod(init=waiting("ContainerCreating"), main=waiting("PodInitializing"))
    assert step_of(made) == "pulling image our/init:1, 1 min"


def test_running_but_not_ready_is_starting_ssh() -> None:
    made = own_pod(phase="Running", init=ended(0, "Completed"), main=running())
    assert step_of(made) == "starting the ssh server"


def test_a_silent_node_is_not_a_dead_server() -> None:
    nodes = {"n1": node_record("n1", ready="Unknown", since=30)}
    assert step_of(ready_pod(), nodes=nodes) == "its node n1 does not answer"


def test_a_pull_that_fails_for_now_is_tried_again() -> None:
    made = own_pod(
        scheduled=condition("PodScheduled", "True", 20),
        init=ended(0, "Completed"),
        main=waiting("ErrImagePull", "dial tcp: i/o timeout"),
    )
    assert "trying again: dial tcp" in step_of(made)


# Dead


def test_out_of_memory_is_told_and_its_log_is_worth_reading() -> None:
    facts = see(own_pod(phase="Failed", init=ended(0), main=ended(137, "OOMKilled")))
    assert facts.state.reason == "it ran out of memory and was killed (OOMKilled)"
    assert facts.log_source == LogSource("gpu-dev-12345678", "uid-gpu-dev-12345678", "dev")
    assert facts.state.node_shares == ()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ended(3), "it ended with exit code 3"),
        (ended(0, "Completed"), "it ended with exit code 0"),
        (ended(143), "it was killed by signal 15"),
        (ended(1, "Error", message="no such file"), "it ended with exit code 1: no such file"),
    ],
)
def test_a_crash_tells_how_it_ended(state: Object, words: str) -> None:
    assert reason_of(own_pod(phase="Failed", init=ended(0), main=state)) == words


def test_a_failed_preparation_is_told_with_its_log() -> None:
    facts = see(own_pod(phase="Failed", init=ended(2), main=waiting("PodInitializing")))
    assert facts.state.reason == "its init container failed: it ended with exit code 2"
    assert facts.log_source is not None
    assert facts.log_source.container == "setup"


def test_an_eviction_is_told_with_the_kubelets_words() -> None:
    words = reason_of(
        own_pod(phase="Failed", main=ended(137), reason="Evicted", message="The node was low on resource: memory.")
    )
    assert words == "it was evicted from n1: The node was low on resource: memory"


def test_a_drained_node_is_told_apart_from_a_lost_one() -> None:
    said = [condition("DisruptionTarget", "True", 1, "EvictionByEvictionAPI", "Eviction API: evicting")]
    assert "is being drained" in reason_of(ready_pod(deleting=True, conditions=said))


def test_a_node_that_is_gone_takes_its_pods_along() -> None:
    assert reason_of(ready_pod(), nodes={}) == "its node n1 is gone"


def test_a_node_silent_for_long_is_lost() -> None:
    nodes = {"n1": node_record("n1", ready="Unknown", since=301)}
    assert "its node n1 was lost" in reason_of(ready_pod(), nodes=nodes)


def test_a_pod_given_up_on_a_silent_node_is_a_lost_node() -> None:
    said = [condition("DisruptionTarget", "True", 1, "DeletionByTaintManager", "Taint manager: deleting")]
    nodes = {"n1": node_record("n1", ready="Unknown", since=60)}
    assert reason_of(ready_pod(deleting=True, conditions=said), nodes=nodes) == "its node n1 was lost"


def test_a_pod_driven_out_by_a_taint_of_a_living_node_was_evicted() -> None:
    said = [condition("DisruptionTarget", "True", 1, "DeletionByTaintManager", "Taint manager: deleting")]
    assert "evicted from n1: the node was tainted" in reason_of(ready_pod(deleting=True, conditions=said))


def test_a_deleted_pod_is_told_as_such() -> None:
    assert reason_of(ready_pod(deleting=True)) == "its pod on n1 was deleted from outside gpu-dev"


def test_a_pod_that_vanished_while_watched_is_dead_with_the_reason() -> None:
    said = [condition("DisruptionTarget", "True", 1, "DeletionByTaintManager", "")]
    nodes = {"n1": node_record("n1", ready="Unknown", since=60)}
    assert reason_of(gone=[ready_pod(deleting=True, conditions=said)], nodes=nodes) == "its node n1 was lost"
    assert reason_of(gone=[ready_pod(deleting=True)]) == "its pod on n1 was deleted from outside gpu-dev"
    assert "ran out of memory" in reason_of(gone=[own_pod(phase="Failed", main=ended(137, "OOMKilled"))])


def test_a_pod_that_vanished_out_of_sight_says_so() -> None:
    parts = ServerParts(RID, [], [GonePod(pod_record(ready_pod()), NOW, was_observed=False)], [])
    seen = compute_server_state(parts, NODES, NOW, SETTINGS).state
    assert (seen.phase, seen.reason) == (ServerPhase.DEAD, "its pod disappeared while the cluster could not be watched")


def test_a_service_without_a_pod_was_lost_unwatched_and_may_be_started_again() -> None:
    seen = see().state
    assert seen.phase is ServerPhase.DEAD
    assert seen.is_restartable


@pytest.mark.parametrize(
    "message",
    ['failed to resolve "x": not found', "pull access denied, repository does not exist", "manifest unknown"],
)
def test_an_image_that_does_not_exist_is_given_up_at_once(message: str) -> None:
    made = own_pod(scheduled=condition("PodScheduled", "True", 2), init=ended(0), main=waiting("ErrImagePull", message))
    assert "image pytorch:2 was not found" in reason_of(made)


def test_an_image_name_that_means_nothing_is_given_up_at_once() -> None:
    made = own_pod(init=ended(0), main=waiting("InvalidImageName", "couldn't parse image name"))
    assert "cannot be used" in reason_of(made)


def test_pulling_that_fails_for_too_long_is_given_up() -> None:
    made = own_pod(
        scheduled=condition("PodScheduled", "True", 121),
        init=ended(0),
        main=waiting("ImagePullBackOff", "i/o timeout"),
    )
    assert reason_of(made) == "the image pytorch:2 cannot be pulled: i/o timeout"


def test_unschedulable_for_too_long_is_given_up_with_the_schedulers_words() -> None:
    said = condition(
        "PodScheduled", "False", 61, "Unschedulable", "0/3 nodes are available: Insufficient nvidia.com/gpu."
    )
    words = reason_of(own_pod(node=None, scheduled=said))
    assert words == "its node n1 rejects it: 0/3 nodes are available: Insufficient nvidia.com/gpu"


def test_a_kubelet_that_does_not_take_the_pod_is_told() -> None:
    words = reason_of(own_pod(phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices present"))
    assert words == "the node n1 rejected it: UnexpectedAdmissionError: no healthy devices present"


def test_a_container_that_keeps_crashing_is_dead() -> None:
    made = own_pod(phase="Running", init=ended(0), main=waiting("CrashLoopBackOff", "back-off"), last=ended(1))
    assert reason_of(made) == "it keeps ending: it ended with exit code 1"


def test_a_missing_status_is_never_a_death() -> None:
    made = own_pod()
    made["status"] = {}
    assert step_of(made)


# Gangs


def test_a_gang_is_ready_when_all_its_members_are() -> None:
    first, second = ready_pod(members=2), ready_pod(rank=1, members=2, node="n2")
    seen = see(second, first).state
    assert seen.phase is ServerPhase.READY
    assert seen.connection is not None
    assert seen.node_shares == (NodeShare(0, "n1", 2), NodeShare(1, "n2", 2))


def test_a_gang_starts_as_long_as_one_member_does() -> None:
    second = own_pod(rank=1, members=2, node="n2", phase="Running", init=ended(0), main=running())
    assert step_of(ready_pod(members=2), second) == "member 1: starting the ssh server"


def test_a_gang_is_dead_when_one_member_is_and_names_it() -> None:
    second = own_pod(rank=1, members=2, node="n2", phase="Failed", init=ended(0), main=ended(137, "OOMKilled"))
    assert reason_of(ready_pod(members=2), second) == "member 1: it ran out of memory and was killed (OOMKilled)"


def test_a_gang_whose_member_vanished_is_dead_and_names_it() -> None:
    words = reason_of(ready_pod(members=2), gone=[ready_pod(rank=1, members=2, node="n2", deleting=True)])
    assert words == "member 1: its pod on n2 was deleted from outside gpu-dev"


def test_a_gang_that_was_never_whole_may_be_started_again() -> None:
    seen = see(ready_pod(members=3)).state
    assert seen.is_restartable
    assert seen.reason == "the pods of members 1, 2 are missing for an unknown reason"
    assert seen.node_shares == (NodeShare(0, "n1", 2),)


# Done with what it was for


def test_one_that_ended_with_its_command_says_so_whole_and_nobody_asks_for_its_log() -> None:
    lines = tuple(f"line {number} of what was written, {'x' * 90}" for number in range(10))
    told = json.dumps({"exit_code": 3, "last": "\n".join(lines)})
    assert len(told) > 1000
    done = own_pod(phase="Succeeded", init=ended(0), main=ended(0, "Completed", message=told))
    for facts in (see(done), see(gone=[done])):
        assert (facts.state.phase, facts.state.command_exit) == (ServerPhase.DEAD, CommandExit(3, lines))
        assert facts.log_source is None
    gang = see(own_pod(members=2, phase="Succeeded", main=ended(0, message=told)), ready_pod(rank=1, members=2))
    assert gang.state.command_exit == CommandExit(3, lines)


def test_last_words_that_tell_of_no_command_are_those_of_a_death() -> None:
    dead = own_pod(phase="Succeeded", init=ended(0), main=ended(0, "Completed", message="no JSON"))
    assert see(dead).state.command_exit is None
    assert reason_of(dead) == "it ended with exit code 0: no JSON"
