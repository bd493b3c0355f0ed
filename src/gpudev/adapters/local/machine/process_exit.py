"""Waits on the event loop for a process to end: by pidfd where the kernel has it, else by polling."""

import asyncio
import os

from gpudev.adapters.local.machine.processes import ProcessIdentity, has_ended, open_pidfd

POLL_S = 0.1


async def wait_until_ended(process: ProcessIdentity | None) -> None:
    if process is None:
        return
    try:
        pidfd = open_pidfd(process)
    except ProcessLookupError:
        return
    if pidfd is None:
        while not has_ended(process, None):  # noqa: ASYNC110 - the kernel sends no event
            await asyncio.sleep(POLL_S)
        return
    try:
        await wait_until_readable(pidfd)
    finally:
        os.close(pidfd)


async def wait_until_readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(fd, resolve)
    try:
        await readable
    finally:
        loop.remove_reader(fd)
