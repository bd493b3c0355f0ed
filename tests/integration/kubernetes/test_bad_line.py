"""The bad line that other tests use: whoever is on it when it is cut hears of it."""

import asyncio

from support.kubernetes.bad_line import CuttingProxy


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_a_connection_that_is_cut_in_the_moment_it_comes_is_cut_too() -> None:
    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.append(writer)

    there: list[asyncio.StreamWriter] = []
    target = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with CuttingProxy(target.sockets[0].getsockname()[1]) as line:
        for turns in range(12):  # of the event loop, after which it is cut: in one of them it has just been accepted
            connecting = asyncio.create_task(asyncio.open_connection("127.0.0.1", line.port))
            cuts = line.cuts
            for _ in range(turns):
                await asyncio.sleep(0)
            while line.cuts == cuts:
                await line.cut()
                await asyncio.sleep(0)
            reader, writer = await connecting
            async with asyncio.timeout(20):
                assert await ends(reader)
            writer.close()
    for one in there:
        one.close()
    target.close()
