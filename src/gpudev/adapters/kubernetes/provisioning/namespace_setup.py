"""What dev servers need once, before the first of them: their namespace, its policy, the storage class for shared
storage. Where our rights do not suffice, what an operator or the chart has made will do; what is missing is said.

Somebody may take them away later: they are looked after, and while something is missing that cannot be made, nobody is
started without it.
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
"""While something is missing and somebody waits for it."""
_MISSING_PERMISSION = re.compile(r'forbidden: User ".*" cannot ')
_TERMINATING_MESSAGE = "because it is being terminated"


class NamespaceSetup:
    """Where dev servers stand."""

    def __init__(self, api: KubernetesApi, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._missing: str | None = None
        self._checked_at = float("-inf")
        self._check_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises where something is missing that cannot be made."""
        await ensure_namespace_objects(self._api, self._settings)
        self._check_task = asyncio.create_task(self._check_periodically(), name="what dev servers need")

    async def close(self) -> None:
        if self._check_task is not None:
            self._check_task.cancel()
            await asyncio.gather(self._check_task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def guard_launch(self) -> AsyncIterator[None]:
        """While something is started. A refusal that says nothing about what was asked for, because our rights or the
        namespace were taken away, is an outage: whoever asked has done nothing wrong, and may ask again."""
        if self._missing is not None and _now() - self._checked_at > _RECHECK_INTERVAL_S:
            await self._check()  # a namespace that was on its way out is gone soon
        if self._missing is not None:
            raise Unavailable(self._missing)
        try:
            yield
        except ApiRejected as refused:
            is_namespace = _is_namespace_missing(refused)
            if not is_namespace and not (refused.status == _FORBIDDEN and _MISSING_PERMISSION.search(str(refused))):
                raise
            if is_namespace:
                await self._check()
            raise Unavailable(str(refused)) from refused

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
            log.info("kubernetes.grounds_not_seen", error=str(error))
        except GpuDevError as error:
            self._missing = str(error)
            log.warning("kubernetes.grounds_missing", error=self._missing)


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
    """One that is there stays as it is: it may be somebody's with labels of their own."""
    try:
        if await api.find_object(NAMESPACE, settings.namespace) is not None:
            return
    except ApiRejected as refused:  # who may not look at it may still be allowed to make it
        if refused.status != _FORBIDDEN:
            raise
    try:
        await api.create(network_policies.build_namespace(settings))
    except ApiRejected as refused:
        if refused.reason == "AlreadyExists":
            return
        if refused.status != _FORBIDDEN:
            raise
        log.info("kubernetes.namespace_not_checked", namespace=settings.namespace, reason=str(refused))


async def _ensure_object(api: KubernetesApi, manifest: Manifest) -> None:
    kind, name = get_kind(manifest), manifest["metadata"]["name"]
    try:
        await api.apply(manifest)
    except ApiRejected as refused:
        if refused.status != _FORBIDDEN:
            raise
        try:
            there = await api.find_object(kind, name)
        except ApiRejected:
            there = None
        if there is None:
            raise ClusterError(f"the {kind.name} {name} is missing and we may not make it: {refused}") from refused
        log.info("kubernetes.not_brought_up_to_date", kind=kind.name, name=name)
