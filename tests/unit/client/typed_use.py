"""What a type checker must know of the SDK; `python -m mypy` reads it, nobody runs it."""

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import assert_type

from gpudev import AsyncGpuDev, AsyncServer, GpuDev, JobView, Server
from gpudev.sdk.resources.dev_servers import CommandResult
from gpudev.wire.disks import DiskView, OperationView
from gpudev.wire.reservations import JobEvent


def show(job: JobView) -> None:
    assert_type(job.status, str)


def train(server: Server) -> str:
    return server.run("make").stdout


async def train_slowly(server: AsyncServer) -> str:
    return (await server.run("make")).stdout


def blocking(client: GpuDev) -> None:
    assert_type(client.jobs.get("3f2a"), JobView)
    assert_type(client.jobs.list(status=["active"]), Sequence[JobView])
    assert_type(client.jobs.follow("3f2a"), Generator[JobEvent, None, None])
    assert_type(client.disks.create("data", on_change=lambda operation: operation.step), OperationView)
    with client.reserve(gpus=1, on_change=lambda job: job.status) as server:
        assert_type(server.run(["nvidia-smi"]), CommandResult)
    with client.reserve(gpus=1, on_change=show) as server:
        train(server)
    client.jobs.get(7)  # type: ignore[arg-type]
    client.jobs.submit(gpu=1)  # type: ignore[call-arg]


async def awaiting(client: AsyncGpuDev) -> None:
    assert_type(await client.jobs.get("3f2a"), JobView)
    assert_type(client.jobs.follow("3f2a"), AsyncGenerator[JobEvent, None])
    assert_type(await client.disks.list(), Sequence[DiskView])
    async with client.reserve(gpus=1) as server:
        assert_type(await server.run("nvidia-smi"), CommandResult)
        await train_slowly(server)
    client.reserve(hours="1")  # type: ignore[arg-type]
