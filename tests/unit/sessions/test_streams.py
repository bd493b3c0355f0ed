"""Bytes between a child's descriptors and a channel."""

import asyncio
import os

from gpudev.adapters.local.sshd.streams import ChildOutput


async def test_what_was_written_is_delivered_and_whoever_keeps_it_open_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    delivered: list[bytes] = []
    ended = asyncio.Event()
    output = ChildOutput(reader, delivered.append, lambda _: ended.set())
    asyncio.get_running_loop().call_soon(os.write, writer, b"logout")  # comes in the moment when it is looked for
    output.end_when_empty()
    async with asyncio.timeout(10):
        await ended.wait()
    assert delivered == [b"logout"]
    os.close(writer)
