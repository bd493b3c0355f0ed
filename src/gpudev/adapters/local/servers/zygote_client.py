"""The control plane's end of the warm process: starts it, asks it, and starts it again when it dies."""

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
from gpudev.adapters.local.machine.process_exit import wait_until_ended
from gpudev.adapters.local.machine.processes import ProcessIdentity, identify
from gpudev.domain.errors import ClusterError, Unavailable

_ANSWER_WITHIN_S = 20.0
_END_WITHIN_S = 2.0
_INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE")
"""What Python itself may need. Anything else could be a secret."""
_FORK_VARIABLES = {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"} if sys.platform == "darwin" else {}
"""Else macOS ends what was forked and goes on without exec, as dev servers do, at the first use of some libraries."""


class ZygoteLost(Unavailable):
    """It went away in the middle of a request: whether that was carried out, it can no longer say."""


@dataclass(frozen=True, slots=True)
class _RunningZygote:
    process: subprocess.Popen[bytes]
    control: socket.socket
    isolation_result: IsolationResult


class ZygoteClient:
    def __init__(self, state_dir: Path, asked: IsolationMode | None) -> None:
        self._state_dir = state_dir
        self._requested_mode = asked
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

    async def spawn(self, member: Path, descriptors: tuple[int, int, int]) -> ProcessIdentity | None:
        """Fork a member's first process; None when it ended at once. Raises ClusterError when it cannot be done,
        WarmProcessLost when nobody knows."""
        answer = await self._request({"spawn": str(member)}, descriptors)
        if "error" in answer:
            raise ClusterError(f"the dev server could not be started: {answer['error']}")
        return None if answer["process"] is None else ProcessIdentity(**answer["process"])

    async def exit_status(self, pid: int) -> int | None:
        """The wait status of a dev server's first process, if this warm process saw it end."""
        if self._running is None:
            return None
        try:
            status: int | None = (await self._request({"status": pid}, ()))["status"]
        except Unavailable:
            return None
        return status

    async def close(self) -> None:
        """Dev servers go on."""
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
                raise ZygoteLost(f"the warm process went away: {error}") from error

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
            # The thread goes on whoever waits for it: taken in first, so that whoever closes can end it.
            self._running = await starting
            raise
        self._restarting = asyncio.create_task(self._restart_after(self._running.process))
        return self._running

    async def _restart_after(self, process: "subprocess.Popen[bytes]") -> None:
        """Be warm again before anybody asks."""
        await wait_until_ended(identify(process.pid))
        async with self._lock:
            if self._running is not None and self._running.process is process and not self._closed:
                with contextlib.suppress(Unavailable, ClusterError):  # whoever asks next is told
                    await self._ensure_running()

    async def _stop_zygote(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.control.close()
            await asyncio.to_thread(_wait_or_kill, running.process)


def _start_zygote(state_dir: Path, asked: IsolationMode | None) -> _RunningZygote:
    ours, theirs = socket.socketpair()
    ours.settimeout(_ANSWER_WITHIN_S)
    command = [sys.executable, "-P", "-m", "gpudev.adapters.local.servers.zygote", str(theirs.fileno()), str(state_dir)]
    with theirs, (state_dir / "zygote.log").open("ab") as log:
        process = subprocess.Popen(
            command if asked is None else [*command, asked.value],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_zygote_environment(),
            start_new_session=True,  # what a terminal sends to the control plane is not for it
        )
    try:
        answer = _receive_answer(ours)
    except (OSError, ValueError) as error:
        ours.close()
        _wait_or_kill(process)
        raise Unavailable(
            f"the warm process did not start ({error}); {state_dir / 'zygote.log'} may say why"
        ) from error
    if "error" in answer:
        ours.close()
        _wait_or_kill(process)
        raise ClusterError(answer["error"])
    return _RunningZygote(process, ours, IsolationResult(IsolationMode(answer["mode"]), tuple(answer["refused"])))


def _zygote_environment() -> dict[str, str]:
    """The same modules, and nothing else of ours."""
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
            raise ConnectionError("it closed the connection")
        line += part
    answer: dict[str, Any] = json.loads(line)
    return answer


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """It ends by itself once its socket is closed."""
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
