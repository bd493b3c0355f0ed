"""Namespace setup: what dev servers need before the first launch.

That is their namespace, its network policy and the storage class of shared storage. Where we may not create them, those
of an operator or the chart are used; an error names what is missing.

They may be deleted later, so they are checked periodically. While something is missing that we may not create,
launches fail.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import structlog

from gpudev.adapters.kubernetes.client.kubernetes_api import ApiRejected, KubernetesApi
from gpudev.adapters.kubernetes.client.resource_kinds import NAMESPACE, Manifest, get_kind
from gpudev.adapters.kubernetes.objects import network_policies, server_manifests
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)

_FORBIDDEN = 403
_NOT_FOUND = 404
_CHECK_INTERVAL_S = 60.0
_RECHECK_INTERVAL_S = 1.0
"""While something is missing and a launch waits for it."""
_MISSING_PERMISSION = re.compile(r'forbidden: User ".*" cannot ')
_TERMINATING_MESSAGE = "because it is being terminated"


class NamespaceSetup:
    def __init__(self, api: KubernetesApi, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._missing: str | None = None
        self._checked_at = float("-inf")
        self._check_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises where something is missing that cannot be created."""
        await ensure_namespace_objects(self._api, self._settings)
        self._check_task = asyncio.create_task(self._check_periodically(), name="namespace setup")

    async def close(self) -> None:
        if self._check_task is not None:
            self._check_task.cancel()
            await asyncio.gather(self._check_task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def guard_launch(self) -> AsyncIterator[None]:
        """Wraps a launch. A rejection because our permissions or the namespace are missing is an outage and not the
        request's fault: it becomes Unavailable, and the launch may be retried."""
        if self._missing is not None and _now() - self._checked_at > _RECHECK_INTERVAL_S:
            await self._check()  # a namespace that was being deleted may be gone by now
        if self._missing is not None:
            raise Unavailable(self._missing)
        try:
            yield
        except ApiRejected as error:
            is_namespace_missing = _is_namespace_missing(error)
            is_forbidden = error.status == _FORBIDDEN and _MISSING_PERMISSION.search(str(error))
            if not is_namespace_missing and not is_forbidden:
                raise
            if is_namespace_missing:
                await self._check()
            raise Unavailable(str(error)) from error

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            await self._check()

    async def _check(self) -> None:
        self._checked_at = _now()
        try:
            await ensure_namespace_objects(self._api, self._settings)
            self._missing = None
        except Unavailable as error:  # nothing is known
            log.info("namespace_setup.unavailable", error=str(error))
        except GpuDevError as error:
            self._missing = str(error)
            log.warning("namespace_setup.incomplete", error=self._missing)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_namespace_missing(error: ApiRejected) -> bool:
    is_gone = error.status == _NOT_FOUND and str(error).startswith("namespaces ")
    return is_gone or (error.status == _FORBIDDEN and _TERMINATING_MESSAGE in str(error))


async def ensure_namespace_objects(api: KubernetesApi, settings: KubernetesSettings) -> None:
    await _ensure_namespace(api, settings)
    for manifest in (
        network_policies.build_dev_server_policy(settings),
        server_manifests.build_efs_storage_class(settings),
    ):
        if manifest is not None:
            await _ensure_object(api, manifest)


async def _ensure_namespace(api: KubernetesApi, settings: KubernetesSettings) -> None:
    """An existing namespace is not changed: it may be an operator's, with labels of its own."""
    try:
        if await api.find_object(NAMESPACE, settings.namespace) is not None:
            return
    except ApiRejected as error:  # we may still be allowed to create it
        if error.status != _FORBIDDEN:
            raise
    try:
        await api.create(network_policies.build_namespace(settings))
    except ApiRejected as error:
        if error.reason == "AlreadyExists":
            return
        if error.status != _FORBIDDEN:
            raise
        log.info("namespace.not_checked", namespace=settings.namespace, reason=str(error))


async def _ensure_object(api: KubernetesApi, manifest: Manifest) -> None:
    kind, name = get_kind(manifest), manifest["metadata"]["name"]
    try:
        await api.apply(manifest)
    except ApiRejected as error:
        if error.status != _FORBIDDEN:
            raise
        try:
            existing = await api.find_object(kind, name)
        except ApiRejected:
            existing = None
        if existing is None:
            raise ClusterError(f"the {kind.name} {name} is missing and we may not create it: {error}") from error
        log.info("namespace_setup.not_updated", kind=kind.name, name=name)
