"""A bad line to the API server: a TCP proxy that cuts every connection each few seconds, or falls silent.

    async with CuttingProxy(plane.port, every=2) as line:
        kubeconfig = plane.kubeconfig_with(server=line.url)

Run as a program, it is a good line: `bad_line.py ADDRESS PORT` carries PORT of this machine to another of its
addresses.
"""

import asyncio
import contextlib
import sys


class CuttingProxy:
    def __init__(self, port: int, *, every: float | None = None, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = port
        self._listen = listen
        self._every = every
        self._ways: set[asyncio.Task[None]] = set()
        self._open_line = asyncio.Event()
        self._open_line.set()
        self.cuts = 0

    async def __aenter__(self) -> "CuttingProxy":
        self._server = await asyncio.start_server(self._connect, *self._listen)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self._cutter = asyncio.create_task(self._cut_regularly())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cutter.cancel()
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    async def cut(self) -> None:
        """Breaks whatever is open, a request in the middle too."""
        ways = list(self._ways)
        self.cuts += len(ways)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    def fall_silent(self) -> None:
        """Connections stay open and nothing comes through: the fault that no error tells about."""
        self._open_line.clear()

    def speak_again(self) -> None:
        self._open_line.set()

    async def _cut_regularly(self) -> None:
        while self._every is not None:
            await asyncio.sleep(self._every)
            await self.cut()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way = asyncio.create_task(self._carry(reader, writer))
        self._ways.add(way)
        way.add_done_callback(self._ways.discard)
        # One that is cut before its first step has had nothing to clean up with: its caller would wait for ever.
        way.add_done_callback(lambda _: writer.transport.abort())

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(self._pump(reader, there), self._pump(back, writer))
        except OSError:
            pass  # either end has gone: so does the other
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()
                    with contextlib.suppress(OSError):
                        await end.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._open_line.wait()
            target.write(data)
            await target.drain()
        target.write_eof()


async def _carry_forever(address: str, port: int) -> None:
    async with CuttingProxy(port, listen=(address, port)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_carry_forever(sys.argv[1], int(sys.argv[2])))
