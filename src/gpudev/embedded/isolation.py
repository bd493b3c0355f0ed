"""What keeps dev servers apart on this machine, in one sentence, as the local cluster itself says it."""

from gpudev.adapters.local.isolation import describe as describe_finding
from gpudev.adapters.local.probing import find_mode
from gpudev.settings import Settings


def describe(settings: Settings) -> str:
    return describe_finding(find_mode(settings.state_dir, None), "")
