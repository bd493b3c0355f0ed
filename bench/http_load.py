"""Steady HTTP load over persistent connections, with little CPU time of its own: both cores belong to the server."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

_IDLE_AT_MOST_S = 10.0


@dataclass(frozen=True)
class Request:
    kind: str
    method: str
    path: str
    body: bytes = b""


class Load:
    def __init__(self, host: str, port: int, key: str) -> None:
        self._host = host
        self._port = port
        self._head = f"Host: {host}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._times: list[tuple[str, float]] = []

    async def steady(self, next_request: Callable[[], Request], *, rate: int, seconds: int) -> list[tuple[str, float]]:
        """(kind, seconds) of every request, timed from its scheduled time."""
        begin = time.perf_counter() + 0.1
        async with asyncio.TaskGroup() as group:
            for number in range(rate * seconds):
                due = begin + number / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(self._send(next_request(), due))
        for _, _, writer in self._idle:
            writer.close()
        return self._times

    async def _send(self, request: Request, due: float) -> None:
        reader, writer = await self._connect()
        head = f"{request.method} {request.path} HTTP/1.1\r\n{self._head}Content-Length: {len(request.body)}\r\n\r\n"
        writer.write(head.encode() + request.body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = await reader.readexactly(length)
        if status >= 300:
            raise SystemExit(f"{request.method} {request.path} answered {status}: {body[:300]!r}")
        self._times.append((request.kind, time.perf_counter() - due))
        self._idle.append((time.perf_counter(), reader, writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A recently used connection, or a new one: servers close idle connections."""
        while self._idle:
            used_at, reader, writer = self._idle.pop()
            if time.perf_counter() - used_at < _IDLE_AT_MOST_S:
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)
