"""Addons of running pods: who may log in, and Jupyter.

They are written to the Secret, for restarts, and sent to our program in the pods.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from gpudev.adapters.key_pairs import parse_key_pair
from gpudev.adapters.kubernetes.cache.object_records import PodRecord
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.client.resource_kinds import SECRET
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.objects.pod_manifest import DEV_CONTAINER, DEVSERVER_BINARY
from gpudev.adapters.kubernetes.objects.secret_files import (
    AUTHORIZED_KEYS,
    HOST_KEY,
    JUPYTER,
    MESH_KEY,
    ServerKeys,
    decode_secret_value,
    encode_secret_value,
    format_authorized_keys,
    format_jupyter_spec,
)
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import ReservationId, pod_name
from gpudev.domain.sessions.addons import OUTDATED_SERVER_ERROR, JupyterSpec, JupyterState, JupyterStatus
from gpudev.domain.untrusted_json import parse_untrusted_json

_EXEC_TIMEOUT = timedelta(seconds=10)
_MAX_RESPONSE_BYTES = 16 * 1024
_MAX_REASON_LENGTH = 1000
_USAGE_MESSAGE = "usage: gpudev-devserver"
"""Output of a program that is too old to know the command."""


class AddonUpdater:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def apply_addons(
        self,
        reservation_id: ReservationId,
        pods: Sequence[PodRecord],
        ssh_public_keys: tuple[str, ...],
        jupyter: JupyterSpec | None,
    ) -> JupyterStatus | None:
        if not pods:
            raise Unavailable("the dev server is not running")
        lines = await self._write_secret(reservation_id, ssh_public_keys, jupyter)
        responses = await asyncio.gather(*(self._send_to_pod(pod, lines, jupyter) for pod in pods))
        if jupyter is None:
            return None
        first = [response for pod, response in zip(pods, responses, strict=True) if _rank(pod) == 0]
        return _parse_jupyter_status(first[0]) if first else JupyterStatus(JupyterState.STARTING)

    async def _write_secret(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterSpec | None
    ) -> str:
        """Returns the authorized keys as the Secret then has them."""
        name = pod_name(reservation_id)
        secret = await self._api.find_object(SECRET, name)
        if secret is None:
            raise Unavailable(f"Secret {name} not found")
        if not labels.belongs_to(secret, reservation_id):
            raise ClusterError(f"the Secret {name} does not belong to this reservation and was not changed")
        data = secret.get("data") or {}
        lines = format_authorized_keys(ssh_public_keys, _parse_keys(name, data))
        desired = {
            AUTHORIZED_KEYS: encode_secret_value(lines),
            JUPYTER: encode_secret_value(format_jupyter_spec(jupyter)),
        }
        if any(data.get(key) != value for key, value in desired.items()):
            # With the version: the write fails if the Secret has changed since it was read.
            version = {"metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]}}
            await self._api.patch(SECRET, name, {**version, "data": desired})
        return lines

    async def _send_to_pod(self, pod: PodRecord, lines: str, jupyter: JupyterSpec | None) -> bytes:
        desired = {
            AUTHORIZED_KEYS: lines,
            JUPYTER: asdict(jupyter) if jupyter is not None and _rank(pod) == 0 else None,
        }
        try:
            return await self._api.exec_in_pod(
                pod.name,
                DEV_CONTAINER,
                [DEVSERVER_BINARY, "adjust"],
                json.dumps(desired).encode(),
                timeout=_EXEC_TIMEOUT,
                max_bytes=_MAX_RESPONSE_BYTES,
            )
        except ClusterError as error:
            if _USAGE_MESSAGE in str(error):
                raise ClusterError(OUTDATED_SERVER_ERROR) from error
            raise


def _parse_keys(name: str, data: dict[str, Any]) -> ServerKeys:
    try:
        mesh = parse_key_pair(decode_secret_value(data[MESH_KEY])) if MESH_KEY in data else None
        return ServerKeys(parse_key_pair(decode_secret_value(data[HOST_KEY])), mesh)
    except (KeyError, ValueError) as error:
        raise ClusterError(f"the keys in the Secret {name} cannot be read") from error


def _rank(pod: PodRecord) -> int | None:
    return None if pod.member is None else pod.member.rank


def _parse_jupyter_status(response: bytes) -> JupyterStatus:
    """Untrusted: users have root in the pod."""
    try:
        status = parse_untrusted_json(response)["jupyter"]
        state = JupyterState(status["state"])
        reason = str(status["reason"])
    except (ValueError, TypeError, KeyError) as error:
        raise ClusterError("the dev server sent an invalid Jupyter status") from error
    if state is not JupyterState.FAILED:
        return JupyterStatus(state)
    printable = "".join(letter for letter in reason or "no reason given" if letter.isprintable())
    return JupyterStatus(state, printable[:_MAX_REASON_LENGTH])
