"""Questions to a person at a terminal."""

from gpudev.cli import output
from gpudev.cli.command_session import CommandSession
from gpudev.wire.cluster import AvailabilityList, GpuAvailability


def is_cpu_type(gpu_type: str) -> bool:
    """By its name, which is all a client has before it asks; the server checks."""
    return gpu_type.startswith("cpu-")


def ask_gpu_type(session: CommandSession, *, gpu_count: int | None) -> str | None:
    """Let them choose among the types that have nodes. None: there is nothing to choose from.

    `gpu_count` None: they have not said how many, so CPU types are offered as well.
    """
    found = session.api.read_path(AvailabilityList, "/v1/gpu/availability").value.gpu_types
    types = [one for one in found if one.total_cluster_gpus and _matches_count(one, gpu_count)]
    if not types:
        return None
    import questionary

    choices = [questionary.Choice(_describe_type(one), value=one.gpu_type) for one in types]
    return str(questionary.select("Which GPU type?", choices=choices).unsafe_ask())


def _matches_count(one: GpuAvailability, gpu_count: int | None) -> bool:
    return gpu_count is None or (one.max_per_node == 0) == (gpu_count == 0)


def _describe_type(one: GpuAvailability) -> str:
    unit = "slots" if one.max_per_node == 0 else "GPUs"
    free = f"{one.available_gpus} of {one.total_cluster_gpus} {unit} free"
    return output.clean(f"{one.gpu_type:<10} {free}{'  (simulated)' if one.simulated else ''}")
