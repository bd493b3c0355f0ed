"""What keeps dev servers apart on this machine, in one sentence: the local cluster's own, found out the same way."""

from gpudev.adapters.local.machine.cgroups import find_cgroup_limiter
from gpudev.adapters.local.machine.isolation import describe_isolation as in_words
from gpudev.adapters.local.machine.isolation_probe import probe_isolation
from gpudev.settings import Settings


def describe_isolation(settings: Settings) -> str:
    finding = probe_isolation(settings.state_dir, None)
    return in_words(finding, find_cgroup_limiter().describe(finding.mode))
