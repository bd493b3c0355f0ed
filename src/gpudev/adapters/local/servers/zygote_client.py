"""Client of the zygote in the control plane: starts it, sends requests, restarts it when it dies."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudev.adapters.local.machine.isolation import IsolationMode, IsolationResult
from gpudev.adapters.local.machine.processes import ProcessIdentity, identify, wait_until_ended
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.log_output import open_log_file

_ANSWER_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 2.0
_INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE")
"""Variables that Python itself may need. Any other could be a secret."""
_FORK_VARIABLES = {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"} if sys.platform == "darwin" else {}
"""Dev servers are forked without exec. Without this, macOS kills such processes at the first use of some libraries."""


class ZygoteLost(Unavailable):
    """The zygote died during a request. Whether it carried the request out is unknown."""


@dataclass(frozen=True, slots=True)
class _RunningZygote:
    process: subprocess.Popen[bytes]
    control: socket.socket
    isolation_result: IsolationResult


class ZygoteClient:
    def __init__(self, state_dir: Path, requested_mode: IsolationMode | None) -> None:
        self._state_dir = state_dir
        self._requested_mode = requested_mode
        self._running: _RunningZygote | None = None
        self._lock = asyncio.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._running is None else self._running.process.pid

    async def start(self) -> IsolationResult:
        async with self._lock:
            return (await self._ensure_running()).isolation_result

    async def spawn(self, member: Path, descriptors: tuple[int, ...]) -> ProcessIdentity | None:
        """Fork a member's first process. None: it ended immediately.

        Raises ClusterError when it failed, ZygoteLost when the result is unknown.
        """
        answer = await self._request({"spawn": str(member)}, descriptors)
        if "error" in answer:
            raise ClusterError(f"cannot start the dev server: {answer['error']}")
        return None if answer["process"] is None else ProcessIdentity(**answer["process"])

    async def exit_status(self, pid: int) -> int | None:
        """The wait status of a dev server's first process. None: the current zygote did not reap it."""
        if self._running is None:
            return None
        try:
            status: int | None = (await self._request({"status": pid}, ()))["status"]
        except Unavailable:
            return None
        return status

    async def close(self) -> None:
        """Stop the zygote. Dev servers continue."""
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._restarting
        async with self._lock:
            await self._stop_zygote()

    async def _request(self, request: dict[str, Any], descriptors: tuple[int, ...]) -> dict[str, Any]:
        async with self._lock:
            running = await self._ensure_running()
            try:
                return await asyncio.to_thread(_exchange, running.control, request, descriptors)
            except (OSError, ValueError) as error:
                await self._stop_zygote()
                raise ZygoteLost(f"the zygote died: {error}") from error

    async def _ensure_running(self) -> _RunningZygote:
        if self._closed:
            raise Unavailable("the local cluster is closed")
        if self._running is not None and self._running.process.poll() is None:
            return self._running
        await self._stop_zygote()
        starting = asyncio.ensure_future(asyncio.to_thread(_start_zygote, self._state_dir, self._requested_mode))
        try:
            self._running = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread continues after the cancellation. Wait for its result, so that `close` can stop the zygote.
            self._running = await starting
            raise
        self._restarting = asyncio.create_task(self._restart_after(self._running.process))
        return self._running

    async def _restart_after(self, process: "subprocess.Popen[bytes]") -> None:
        """Restart a zygote that died, so that the next request need not wait for it."""
        await wait_until_ended(identify(process.pid))
        async with self._lock:
            if self._running is not None and self._running.process is process and not self._closed:
                with contextlib.suppress(Unavailable, ClusterError):  # the next request raises it
                    await self._ensure_running()

    async def _stop_zygote(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.control.close()
            await asyncio.to_thread(_wait_or_kill, running.process)


def _start_zygote(state_dir: Path, requested_mode: IsolationMode | None) -> _RunningZygote:
    ours, theirs = socket.socketpair()
    ours.settimeout(_ANSWER_TIMEOUT_S)
    command = [sys.executable, "-P", "-m", "gpudev.adapters.local.servers.zygote", str(theirs.fileno()), str(state_dir)]
    with theirs, open_log_file(state_dir / "zygote.log") as log:
        process = subprocess.Popen(
            command if requested_mode is None else [*command, requested_mode.value],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_zygote_environment(),
            start_new_session=True,  # a terminal's signals to the control plane must not reach it
        )
    try:
        answer = _receive_answer(ours)
    except (OSError, ValueError) as error:
        ours.close()
        _wait_or_kill(process)
        raise Unavailable(f"the zygote did not start ({error}); {state_dir / 'zygote.log'} may say why") from error
    if "error" in answer:
        ours.close()
        _wait_or_kill(process)
        raise ClusterError(answer["error"])
    return _RunningZygote(process, ours, IsolationResult(IsolationMode(answer["mode"]), tuple(answer["rejections"])))


def _zygote_environment() -> dict[str, str]:
    """The search path of our modules, and none of our other variables."""
    kept = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    return {
        **kept,
        **_FORK_VARIABLES,
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _exchange(control: socket.socket, request: dict[str, Any], descriptors: tuple[int, ...]) -> dict[str, Any]:
    line = json.dumps(request).encode() + b"\n"
    if descriptors:
        socket.send_fds(control, [line], descriptors)
    else:
        control.sendall(line)
    return _receive_answer(control)


def _receive_answer(control: socket.socket) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        part = control.recv(65536)
        if not part:
            raise ConnectionError("the zygote closed the connection")
        line += part
    answer: dict[str, Any] = json.loads(line)
    return answer


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Its socket is closed, so it ends soon. Kill it if it does not."""
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
