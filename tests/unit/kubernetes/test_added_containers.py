"""What somebody's admission webhook makes of a dev server's pod. Containers that it adds (a mesh, a log shipper) change
nothing: a dev server is what its own container is, and a pod goes on running while any of the others does."""

import json

from gpudev.adapters.kubernetes.cache.object_records import ServerParts
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.observation.pod_failures import find_rejecting_component
from gpudev.adapters.kubernetes.observation.server_state import compute_server_state
from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.ports.cluster import ServerPhase, ServerState
from support.kubernetes.objects import (
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


def see(made: Object) -> ServerState:
    parts = ServerParts(RID, [pod_record(made)], [], [service_record(service())])
    return compute_server_state(parts, {"n1": node_record("n1")}, NOW, SETTINGS).state


def with_sidecar(made: Object, state: Object, *, ready: bool = True) -> Object:
    """As the first of all, since nobody says where webhooks put theirs."""
    made["spec"]["containers"].insert(0, {"name": "proxy", "image": "mesh:1"})
    made["status"].setdefault("containerStatuses", []).insert(0, {"name": "proxy", "state": state, "ready": ready})
    return made


def with_native_sidecar(made: Object, state: Object) -> Object:
    """An init container that goes on running."""
    made["spec"]["initContainers"].insert(0, {"name": "proxy", "image": "mesh:1", "restartPolicy": "Always"})
    told = made["status"].setdefault("initContainerStatuses", [])
    told.insert(0, {"name": "proxy", "state": state, "ready": "running" in state})
    return made


def test_a_dev_server_that_ended_is_dead_although_its_pod_goes_on_for_a_sidecar() -> None:
    seen = see(with_sidecar(own_pod(phase="Running", init=ended(0), main=ended(137, "OOMKilled")), running()))
    assert seen.phase is ServerPhase.DEAD
    assert "ran out of memory" in (seen.reason or "")
    assert [share.units for share in seen.node_shares] == [2], "its pod still has them"


def test_a_command_that_is_done_ends_its_dev_server_beside_a_sidecar() -> None:
    words = json.dumps({"exit_code": 5, "last": "done"})
    made = own_pod(phase="Running", init=ended(0), main=ended(0, "Completed", message=words))
    assert see(with_sidecar(made, running())).command_exit == CommandExit(5, ("done",))


def test_of_two_containers_that_ended_the_dev_servers_end_is_told() -> None:
    made = own_pod(phase="Failed", init=ended(0), main=ended(137, "OOMKilled"))
    assert "ran out of memory" in (see(with_sidecar(made, ended(143))).reason or "")


def test_a_sidecar_that_is_not_ready_or_has_ended_keeps_nobody_from_a_dev_server_that_is() -> None:
    for state in (running(), ended(0, "Completed"), waiting("ImagePullBackOff", "not found")):
        made = with_sidecar(ready_pod(), state, ready=False)
        made["status"]["conditions"] = [one for one in made["status"]["conditions"] if one["type"] != "Ready"]
        assert see(made).phase is ServerPhase.READY, state


def test_a_sidecar_that_keeps_crashing_ends_no_dev_server_that_runs() -> None:
    crashing = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container")
    assert see(with_native_sidecar(ready_pod(), crashing)).phase is ServerPhase.READY


def test_a_sidecar_that_comes_before_and_keeps_crashing_is_why_a_dev_server_cannot_start() -> None:
    crashing = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container")
    seen = see(with_native_sidecar(own_pod(), crashing))
    assert (seen.phase, seen.reason) == (ServerPhase.DEAD, "it keeps ending")


def test_a_sidecar_that_runs_does_not_hide_what_the_dev_server_waits_for() -> None:
    made = own_pod(init=ended(0, at=15), main=waiting("ContainerCreating"))
    assert see(with_native_sidecar(made, running())).step == "pulling image pytorch:2, 10 s"


def test_whoever_holds_a_pod_back_by_a_gate_is_told_of() -> None:
    gated = condition("PodScheduled", "False", reason="SchedulingGated", message="Scheduling is blocked by a gate")
    assert see(own_pod(node=None, scheduled=gated)).step == "waiting for its node: Scheduling is blocked by a gate"


def test_a_pod_that_was_sent_to_another_node_than_planned_is_refused_and_said_to_be() -> None:
    """It has GPUs there that the plan may give to others."""
    made = ready_pod()
    made["metadata"]["annotations"][labels.PLANNED_NODE] = "n2"
    seen = see(made)
    assert (seen.phase, seen.rejection) == (ServerPhase.DEAD, "it is on n1 instead of n2")
    assert "its pod is on n1 instead of n2" in (seen.reason or "")
    assert find_rejecting_component(pod_record(made)) == "admission"
