"""Execution of a command in a pod, over a WebSocket of the API server."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import aiohttp
import orjson

from gpudev.adapters.kubernetes.client.api_transport import ApiTransport
from gpudev.domain.errors import ClusterError, Unavailable

_PROTOCOL = "v5.channel.k8s.io"
"""The first version that can close standard input."""
_STDIN, _STDOUT, _STDERR, _RESULT, _CLOSE = 0, 1, 2, 3, 255
_CHUNK_BYTES = 16 * 1024
MAX_OUTPUT_BYTES = 1024 * 1024


async def run_in_pod(
    transport: ApiTransport,
    path: str,
    container: str,
    argv: Sequence[str],
    *,
    stdin: bytes,
    timeout: timedelta,
    max_bytes: int = MAX_OUTPUT_BYTES,
) -> bytes:
    """Return its standard output. Untrusted, and limited to `max_bytes`: the pod's user may replace the program."""
    params = [("container", container), ("stdout", "1"), ("stderr", "1")]
    params += [("stdin", "1")] if stdin else []
    params += [("command", word) for word in argv]
    try:
        async with asyncio.timeout(timeout.total_seconds()), transport.websocket(path, params, (_PROTOCOL,)) as socket:
            if stdin and socket.protocol != _PROTOCOL:
                raise ClusterError("the cluster cannot close a command's input (expected Kubernetes 1.30 or newer)")
            # Concurrent with reading: a command that writes while it reads would block, and so would we.
            sending = asyncio.create_task(_send_stdin(socket, stdin))
            try:
                return await _read_result(socket, max_bytes)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except TimeoutError as error:
        raise Unavailable(f"a command in the pod did not end within {timeout.total_seconds():g} s") from error


async def _send_stdin(socket: aiohttp.ClientWebSocketResponse, stdin: bytes) -> None:
    for start in range(0, len(stdin), _CHUNK_BYTES):
        await socket.send_bytes(bytes((_STDIN,)) + stdin[start : start + _CHUNK_BYTES])
    if stdin:
        await socket.send_bytes(bytes((_CLOSE, _STDIN)))


async def _read_result(socket: aiohttp.ClientWebSocketResponse, max_bytes: int) -> bytes:
    written: dict[int, bytearray] = {_STDOUT: bytearray(), _STDERR: bytearray(), _RESULT: bytearray()}
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data and message.data[0] in written:
            written[message.data[0]] += message.data[1:]
            if sum(map(len, written.values())) > max_bytes:
                raise ClusterError(f"a command in the pod wrote more than {max_bytes} bytes")
    if not written[_RESULT]:
        raise Unavailable("the connection to the pod was lost before the command ended")
    result: dict[str, Any] = orjson.loads(bytes(written[_RESULT]))
    if result.get("status") != "Success":
        reason = bytes(written[_STDERR]).decode("utf-8", "replace").strip()
        raise ClusterError(f"a command in the pod failed: {reason or result.get('message', 'no reason given')}")
    return bytes(written[_STDOUT])
