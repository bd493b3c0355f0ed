"""What one user writes into the reports of their pod fails nothing but what concerns that pod.

A user has root in the pod: the termination message, and everything that our program there answers, may be anything.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import pytest

from gpudev.adapters.key_pairs import generate_key_pair
from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServerParts, to_pod_record
from gpudev.adapters.kubernetes.client.kubernetes_api import decode_list
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.objects.secret_files import HOST_KEY, encode_secret_value
from gpudev.adapters.kubernetes.observation.pod_reports import PodPersonalizationReports
from gpudev.adapters.kubernetes.observation.server_state import compute_server_state
from gpudev.adapters.kubernetes.provisioning.addons import AddonUpdater
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.addons import JupyterSpec, JupyterState
from gpudev.ports.cluster import ServerPhase
from support.hostile_json import HOSTILE
from support.kubernetes.objects import (
    NOW,
    RID,
    SETTINGS,
    ended,
    node_record,
    own_pod,
    pod_record,
    ready_pod,
    service,
    service_record,
)
from support.polling import eventually_async

EVE = ReservationId(UUID("eeeeeeee-0000-4000-8000-000000000001"))
NODES = {"n1": node_record("n1")}
JUPYTER = JupyterSpec("token", "ssh-ed25519 AAAA", "/base/")


@dataclass
class PodsThatAnswer:
    """Stands in for the Kubernetes API: pods answer to `exec` by name, and Secrets are there."""

    answers: dict[str, bytes]

    async def exec_in_pod(self, pod: str, *_: Any, **__: Any) -> bytes:
        return self.answers[pod]

    async def find_object(self, _kind: object, name: str) -> dict[str, Any]:
        reservation = next(rid for rid in (RID, EVE) if rid.hex[:8] in name)
        metadata = {
            "name": name,
            "resourceVersion": "1",
            "labels": {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: str(reservation)},
        }
        return {"metadata": metadata, "data": {HOST_KEY: encode_secret_value(generate_key_pair()[0])}}

    async def patch(self, *_: Any) -> None: ...


def personalized(rid: ReservationId) -> PodRecord:
    pod = ready_pod(rid=rid)
    pod["metadata"]["annotations"][labels.PERSONALIZATION] = "yes"
    return pod_record(pod)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_termination_message_hides_neither_its_own_pods_end_nor_another_pod(text: bytes) -> None:
    """As the API server lists them: the message is text in its JSON."""
    message = text.decode(errors="replace")
    hostile = own_pod(rid=EVE, phase="Failed", init=ended(0, "Completed"), main=ended(1, message=message))
    listed = orjson.dumps({"metadata": {"resourceVersion": "7"}, "items": [hostile, ready_pod()]})
    records = [
        to_pod_record(pod, SETTINGS.namespace, SETTINGS.gpu_resource) for pod in decode_list(listed).decode_items()
    ]
    [dead, ready] = [
        compute_server_state(
            ServerParts(rid, [record], [], [service_record(service(rid=rid))]), NODES, NOW, SETTINGS
        ).state
        for rid, record in zip((EVE, RID), records, strict=True)
        if record is not None
    ]
    assert dead.phase is ServerPhase.DEAD
    assert dead.command_exit is None
    assert dead.reason is not None
    assert len(dead.reason) < 2000
    assert ready.phase is ServerPhase.READY


@pytest.mark.parametrize("text", HOSTILE)
async def test_an_answer_about_jupyter_is_an_error_of_that_dev_server_only(text: bytes) -> None:
    eves, others = pod_record(ready_pod(rid=EVE)), pod_record(ready_pod())
    pods = PodsThatAnswer({eves.name: text, others.name: b'{"jupyter": {"state": "ready", "reason": ""}}'})
    updater = AddonUpdater(pods)  # type: ignore[arg-type]
    with pytest.raises(ClusterError):
        await updater.apply_addons(EVE, [eves], (), JUPYTER)
    status = await updater.apply_addons(RID, [others], (), JUPYTER)
    assert status is not None
    assert status.state is JupyterState.READY


@pytest.mark.parametrize("text", HOSTILE)
async def test_a_personalization_report_is_never_shown_and_keeps_no_other_back(text: bytes) -> None:
    eves, others = personalized(EVE), personalized(RID)
    pods = PodsThatAnswer({eves.name: text, others.name: b'{"words": "all well", "final": true}'})
    reports = PodPersonalizationReports(pods, lambda: None)  # type: ignore[arg-type]

    def summary(rid: ReservationId, pod: PodRecord) -> str | None:
        return reports.find_summary(ServerParts(rid, [pod], [], []))

    try:
        assert summary(EVE, eves) is None
        async with asyncio.timeout(10):
            await eventually_async(_is_told(lambda: summary(RID, others)))
        assert summary(EVE, eves) is None
    finally:
        await reports.close()


def _is_told(summary: Callable[[], str | None]) -> Callable[[], bool]:
    return lambda: summary() == "all well"
