"""The zygote: forks dev servers in milliseconds, because the SSH server's modules are loaded already.

The control plane starts it in a session of its own, with one end of a socket pair as FD::

    python -m gpudev.adapters.local.servers.zygote FD STATE_DIR [MODE]

It has no secrets and no descriptors of the control plane, reads no user's data, and ends when the other end of the
socket closes. Dev servers continue without it.

Requests and answers are lines of JSON:
`{"spawn": FOLDER}` with three or four descriptors (listening socket, report pipe, lock, network namespace)
→ `{"process": {…}|null}`;
`{"status": PID}` → `{"status": WAIT_STATUS|null}` of a dev server's first process that has ended.
The answer to either may be `{"error": TEXT}`.
"""

import encodings.idna  # noqa: F401 - sockets import it later, when imports are disabled
import gc
import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from gpudev.adapters.local.machine import linux, namespaces
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.isolation_probe import probe_isolation
from gpudev.adapters.local.machine.launch_spec import LaunchSpec
from gpudev.adapters.local.machine.processes import identify
from gpudev.adapters.local.servers import pid1
from gpudev.adapters.local.servers.pid1_reports import LAUNCH_FILE
from gpudev.adapters.local.sshd.server import preload
from gpudev.log_output import make_standard_error_lossy

_MAX_STATUSES = 1000
_MAX_REQUEST_BYTES = 65536
_MAX_DESCRIPTORS = 4


def main(arguments: list[str]) -> int:
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    make_standard_error_lossy()
    requested_mode = IsolationMode(arguments[2]) if len(arguments) > 2 else None
    preload()
    try:
        isolation = probe_isolation(Path(arguments[1]), requested_mode)
    except OSError as error:
        _send_answer(control, {"error": str(error)})
        return 1
    zygote = Zygote(control)
    if linux.IS_LINUX:
        linux.set_process_name("gpu-dev-zygote")
        linux.become_subreaper()  # so that it gets the wait status of dev servers
    signal.signal(signal.SIGCHLD, lambda *_: zygote.reap_children())
    gc.collect()
    gc.freeze()  # so that garbage collection in a child does not copy the pages it shares with us
    _send_answer(control, {"mode": isolation.mode, "rejections": isolation.rejections})
    zygote.serve()
    return 0


class Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._statuses: dict[int, int] = {}

    def serve(self) -> None:
        pending = b""
        descriptors: list[int] = []
        while True:
            data, fds, _, _ = socket.recv_fds(self._control, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
            descriptors.extend(fds)
            if not data:
                return
            pending += data
            while b"\n" in pending:
                line, _, pending = pending.partition(b"\n")
                passed, descriptors = descriptors, []
                _send_answer(self._control, self._handle_request(json.loads(line), passed))

    def reap_children(self) -> None:
        """Record the wait status of children and of orphans, which become our children."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._statuses[pid] = status
                if len(self._statuses) > _MAX_STATUSES:
                    self._statuses.pop(next(iter(self._statuses)))
        except ChildProcessError:
            return

    def _handle_request(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        if "status" in request:
            self.reap_children()
            return {"status": self._statuses.pop(request["status"], None)}
        try:
            return self._spawn(Path(request["spawn"]), descriptors)
        except (OSError, ValueError) as error:
            return {"error": str(error)}
        finally:
            for fd in descriptors:
                os.close(fd)

    def _spawn(self, member: Path, descriptors: list[int]) -> dict[str, Any]:
        listener, pipe, lock, *network = descriptors
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                os.close(reading)
                self._control.close()
                _enter_network(network, writing)
                _start_first_process(member, socket.socket(fileno=listener), pipe, lock, writing)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe_end:
            answer: dict[str, Any] = json.loads(pipe_end.read() or '{"error": "the zygote could not start it"}')
        if "error" in answer:
            return answer
        identity = identify(answer["pid"])
        return {"process": None if identity is None else asdict(identity)}


def _enter_network(namespaces: list[int], writing: int) -> None:
    """Enter the dev server's own network. The listening socket stays one of the host's."""
    try:
        for namespace in namespaces:
            linux.enter_namespace(namespace, linux.CLONE_NEWNET)
    except OSError as error:
        os.write(writing, json.dumps({"error": str(error)}).encode())
        os._exit(0)


def _start_first_process(member: Path, listener: socket.socket, pipe: int, lock: int, writing: int) -> NoReturn:
    """Runs in an intermediate process: enters the new namespaces, forks the first process there, and ends.

    Without namespaces it becomes the first process itself. So the zygote gets its wait status also on systems without
    subreapers.
    """
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.disable()
        launch = LaunchSpec.from_json((member / LAUNCH_FILE).read_text())
        for cgroup in launch.cgroups:
            Path(cgroup, "cgroup.procs").write_text("0")
        if launch.mode is IsolationMode.USER:
            namespaces.enter_user_namespace(launch.uid)
        if launch.mode.has_namespaces:
            namespaces.unshare_all()
        first = os.fork() if launch.mode.has_namespaces else 0
        if first == 0:
            try:
                if not launch.mode.has_namespaces:
                    _send_pid(writing, os.getpid())
                os.close(writing)
                gc.enable()
                pid1.main(launch, member, listener, pipe, lock)
            finally:
                os._exit(pid1.EXIT_FAILED)
        _send_pid(writing, first)
    except BaseException as error:  # noqa: BLE001 - nothing else can report it
        traceback.print_exc()
        os.write(writing, json.dumps({"error": str(error)}).encode())
    finally:
        os._exit(0)  # a forked process must never run on in its parent's code, also when the report fails


def _send_pid(writing: int, pid: int) -> None:
    os.write(writing, json.dumps({"pid": pid}).encode())


def _send_answer(control: socket.socket, answer: dict[str, Any]) -> None:
    control.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the control plane is gone
