"""What a DCGM exporter tells, in Prometheus' text format: pure.

Only samples that name a pod of our namespace count. A GPU that is shared by several pods is told for each of them.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from prometheus_client.parser import text_string_to_metric_families

from gpudev.domain.errors import Invalid
from gpudev.domain.gpu_use import GpuUse

BUSY_PERCENT = "DCGM_FI_DEV_GPU_UTIL"
BUSY_SHARE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
"""The same from the GPU's own counters, 0 to 1; GPUs that are partitioned (MIG) have only this."""
USED_MIB, FREE_MIB, RESERVED_MIB = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_METRICS = frozenset({BUSY_PERCENT, BUSY_SHARE, USED_MIB, FREE_MIB, RESERVED_MIB})
_MIB = 2**20
_GpuKey = tuple[str, str, str]


def parse_exporter(text: str, namespace: str, at: datetime) -> dict[str, list[GpuUse]]:
    """By pod. Raises Invalid for what is no such text."""
    found: defaultdict[tuple[str, _GpuKey], dict[str, float]] = defaultdict(dict)
    try:
        for family in text_string_to_metric_families(text):
            if family.name not in _METRICS:
                continue
            for sample in family.samples:
                pod = _own_pod(sample.labels, namespace)
                if pod is not None:
                    found[pod, _gpu_key(sample.labels)][sample.name] = sample.value
    except ValueError as error:
        raise Invalid(f"this is not what an exporter tells: {error}") from error
    by_pod: defaultdict[str, list[GpuUse]] = defaultdict(list)
    for (pod, gpu), values in sorted(found.items()):
        by_pod[pod].append(_gpu_use(gpu, values, at))
    return dict(by_pod)


def _own_pod(labels: Mapping[str, str], namespace: str) -> str | None:
    """Older exporters write other names; one that was relayed by a Prometheus has `exported_` before them."""
    for before in ("", "exported_", "pod_"):
        pod = labels.get("pod_name" if before == "pod_" else f"{before}pod")
        space = labels.get("pod_namespace" if before == "pod_" else f"{before}namespace")
        if pod and space == namespace:
            return pod
    return None


def _gpu_key(labels: Mapping[str, str]) -> _GpuKey:
    part = labels.get("GPU_I_ID")
    return labels.get("Hostname", ""), labels.get("gpu", "?"), f"/{part}" if part else ""


def _gpu_use(gpu: _GpuKey, values: Mapping[str, float], at: datetime) -> GpuUse:
    node, number, part = gpu
    busy = values[BUSY_PERCENT] / 100 if BUSY_PERCENT in values else values.get(BUSY_SHARE)
    used, free = values.get(USED_MIB), values.get(FREE_MIB)
    total = None if used is None or free is None else used + free + values.get(RESERVED_MIB, 0.0)
    return GpuUse(
        gpu=f"{number}{part}",
        node=node,
        at=at,
        busy=None if busy is None else min(1.0, max(0.0, busy)),
        memory_used_bytes=None if used is None else round(used * _MIB),
        memory_total_bytes=None if total is None else round(total * _MIB),
    )
