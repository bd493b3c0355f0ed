"""The NVIDIA GPUs of this machine, read through NVML. Without a driver there are none, which is not an error.

Calls may take long when a GPU has a fault: never make them on the event loop.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudev.domain.errors import Unavailable

CONTROL_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Every user of a GPU needs these besides the GPU's own file."""


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    index: int
    name: str
    device_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuMeasurement:
    index: int
    busy: float
    memory_used: int
    memory_total: int


def find_gpus() -> list[NvmlGpu]:
    nvml = _library()
    if nvml is None:
        return []
    try:
        return [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []


def computing_pids() -> dict[int, frozenset[int]]:
    """The processes that compute on each GPU, by NVML's numbers. A desktop that only draws does not count.

    Raises Unavailable when the driver does not answer.
    """
    nvml = _library()
    if nvml is None:
        raise Unavailable("the NVIDIA driver does not answer")
    try:
        return {index: _pids(nvml, index) for index in range(nvml.nvmlDeviceGetCount())}
    except nvml.NVMLError as error:
        raise Unavailable(f"the NVIDIA driver does not answer: {error}") from error


def measure_gpus() -> list[GpuMeasurement]:
    """The current utilization of each GPU. Empty where no driver answers; a GPU that cannot be read is left out."""
    nvml = _library()
    if nvml is None:
        return []
    measured = []
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except nvml.NVMLError:
            continue
        measured.append(GpuMeasurement(index, busy, int(memory.used), int(memory.total)))
    return measured


def _gpu(nvml: Any, index: int) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    try:
        # The number in the file's name may differ from NVML's.
        device = f"/dev/nvidia{nvml.nvmlDeviceGetMinorNumber(handle)}"
    except nvml.NVMLError:
        device = ""
    files = (device,) if device and Path(device).exists() else ()
    return NvmlGpu(index, name.decode() if isinstance(name, bytes) else name, files)


def _pids(nvml: Any, index: int) -> frozenset[int]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return frozenset(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))


def _library() -> Any:
    """pynvml, initialized. None: there is no driver."""
    import pynvml  # loaded on first use

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
