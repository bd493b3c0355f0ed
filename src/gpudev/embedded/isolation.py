"""What keeps dev servers apart on this machine, in one sentence: the local cluster's own, found out the same way."""

from gpudev.adapters.local.machine.cgroups import find_limiter
from gpudev.adapters.local.machine.isolation import describe as in_words
from gpudev.adapters.local.machine.isolation_probe import find_mode
from gpudev.settings import Settings


def describe(settings: Settings) -> str:
    finding = find_mode(settings.state_dir, None)
    return in_words(finding, find_limiter().in_words(finding.mode))
