"""What dev servers need once, before the first of them: their namespace, its policy, the storage class for shared
storage. Where our rights do not suffice, what an operator or the chart has made will do; what is missing is said."""

import structlog

from gpudev.adapters.kubernetes import manifests, policies
from gpudev.adapters.kubernetes.api import KubernetesApi, Refused
from gpudev.adapters.kubernetes.kinds import NAMESPACE, Manifest, kind_of
from gpudev.domain.errors import ClusterError
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)

_FORBIDDEN = 403


async def furnish(api: KubernetesApi, settings: KubernetesSettings) -> None:
    await _ensure_namespace(api, settings)
    for manifest in (policies.dev_server_policy(settings), manifests.efs_storage_class(settings)):
        if manifest is not None:
            await _ensure(api, manifest)


async def _ensure_namespace(api: KubernetesApi, settings: KubernetesSettings) -> None:
    """One that is there stays as it is: it may be somebody's with labels of their own."""
    try:
        if await api.get(NAMESPACE, settings.namespace) is not None:
            return
    except Refused as refused:  # who may not look at it may still be allowed to make it
        if refused.status != _FORBIDDEN:
            raise
    try:
        await api.create(policies.namespace(settings))
    except Refused as refused:
        if refused.reason == "AlreadyExists":
            return
        if refused.status != _FORBIDDEN:
            raise
        log.info("kubernetes.namespace_not_checked", namespace=settings.namespace, reason=str(refused))


async def _ensure(api: KubernetesApi, manifest: Manifest) -> None:
    kind, name = kind_of(manifest), manifest["metadata"]["name"]
    try:
        await api.apply(manifest)
    except Refused as refused:
        if refused.status != _FORBIDDEN:
            raise
        try:
            there = await api.get(kind, name)
        except Refused:
            there = None
        if there is None:
            raise ClusterError(f"the {kind.name} {name} is missing and we may not make it: {refused}") from refused
        log.info("kubernetes.not_brought_up_to_date", kind=kind.name, name=name)
