"""First process of a dev server's member: runs the SSH server and reaps orphans.

It owns the listening socket and restarts the SSH server on it. It survives the control plane, and everything in the
member ends with it. In a pid namespace it is pid 1: no signal from inside reaches it, and the kernel ends all others
with it. In plain folders it is the subreaper of orphans, and on SIGTERM it kills them all. It knows nothing of
reservations.
"""

import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, FrozenImporter
from pathlib import Path
from typing import NoReturn

from gpudev.adapters.local.machine import linux, namespaces
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.launch_spec import LOGIN, SHELL, LaunchSpec, inside_paths
from gpudev.adapters.local.machine.processes import children_of, descendants_of, describe_exit_status, identify_self
from gpudev.adapters.local.servers import personalization
from gpudev.adapters.local.servers.pid1_reports import (
    LOG_FILE,
    Pid1Reporter,
    open_command_exit_report,
    open_jupyter_report,
    open_personalization_report,
)
from gpudev.adapters.local.sshd.command_exit import EXIT_COMMAND_ENDED
from gpudev.adapters.local.sshd.server import run_sshd
from gpudev.adapters.local.sshd.sshd_config import SshdConfig
from gpudev.domain.backoff import backoff

EXIT_FAILED = 70
EXIT_KILL_INCOMPLETE = 71
_HEALTHY_AFTER_S = 5.0
_MAX_FAILURES = 3
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 2.0
_STOP_TIMEOUT_S = 2.0
_BANNER_POLL_S = 0.02
_KEPT_CAPABILITIES = (
    *(linux.CAP_KILL, linux.CAP_SETGID, linux.CAP_SETUID, linux.CAP_SETPCAP),
    linux.CAP_SYS_RESOURCE,  # without it, users could undo their processes' oom_score_adj
)


def main(launch: LaunchSpec, member: Path, listener: socket.socket, pipe: int, lock: int) -> NoReturn:
    """Never returns: the process ends with the dev server."""
    os.umask(0o022)
    reporter = Pid1Reporter(member, pipe)
    # First of all, so that a later control plane can identify this process.
    reporter.report_process(identify_self())
    try:
        _detach_from_zygote(member, keep=(listener.fileno(), lock, *reporter.descriptors))
        listeners = (listener, _listen_inside(listener)) if launch.has_own_network else (listener,)
        config = _sshd_config(launch, member)
        start_personalization = _personalization_starter(launch, config, member)
        reporter.report_step("building the file system")
        _isolate_self(launch, member)
        reporter.report_step("starting the ssh server")
        if _supervise_sshd(
            lambda: _fork_sshd(config, launch, listeners), listeners[-1], reporter, start_personalization
        ):
            _exit_successfully(launch)
    except Exception as error:  # noqa: BLE001 - nothing else can report it; then the process ends
        traceback.print_exc()
        reporter.report_failure(f"{type(error).__name__}: {error}")
    os._exit(EXIT_FAILED)


def _detach_from_zygote(member: Path, keep: tuple[int, ...]) -> None:
    """Give up what was inherited from the zygote: session, environment, descriptors, signal handlers."""
    os.setsid()
    os.environ.clear()
    log = os.open(member / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    devnull = os.open("/dev/null", os.O_RDONLY)
    for number, fd in ((0, devnull), (1, log), (2, log)):
        os.dup2(fd, number)
    close_descriptors({0, 1, 2, *keep})
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _listen_inside(listener: socket.socket) -> socket.socket:
    """The same port on the loopback interface of the dev server's own network: members of a gang log in to each other
    there. The other socket is one of the host's network, which nothing inside can reach."""
    return socket.create_server(("127.0.0.1", listener.getsockname()[1]))


def _sshd_config(launch: LaunchSpec, member: Path) -> SshdConfig:
    view = inside_paths(launch.mode, launch.home, launch.workspace, launch.run, member)
    return SshdConfig(
        host_key=Path(launch.host_key).read_text(),
        authorized_keys_path=f"{view.run}/authorized_keys",
        home=view.home,
        messages_path=f"{view.run}/messages",
        motd_path=f"{view.run}/motd",
        # Jupyter runs on rank 0, because people log in there.
        jupyter_path=f"{view.run}/jupyter" if member.name == "0" else None,
        jupyter_report=open_jupyter_report(member),
        command_exit_report=open_command_exit_report(member) if member.name == "0" else None,
        username=LOGIN,
        shell=SHELL,
        environment=launch.environment,
        lifeline=None if linux.IS_LINUX else _open_lifeline(),
        closed_ports=frozenset(launch.closed_ports),
    )


def _personalization_starter(launch: LaunchSpec, config: SshdConfig, member: Path) -> Callable[[], None]:
    """A function that starts the personalization. Its report is opened now, while its path is visible."""
    if not launch.has_personalization:
        return lambda: None
    report = open_personalization_report(member)

    def begin() -> None:
        personalization.fork_personalization(launch, config, report, close_descriptors)
        os.close(report)

    return begin


def _isolate_self(launch: LaunchSpec, member: Path) -> None:
    """Enter the isolation that this process keeps for the rest of its life."""
    if linux.IS_LINUX:
        linux.set_process_name("gpu-dev-init")
        if not launch.mode.has_own_uid:
            linux.set_oom_score_adj(linux.OOM_SCORE_OF_USERS)  # later its own /proc/self is closed to it
    if launch.mode.has_namespaces:
        namespaces.build_root(launch, member)
        _disable_imports()
        linux.set_dumpable(False)
        if launch.mode is IsolationMode.ROOT:
            linux.keep_capabilities(_KEPT_CAPABILITIES)
        return
    if linux.IS_LINUX:
        linux.become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: _kill_everything())


def _disable_imports() -> None:
    """From here on a module's path may be in a user's folder, and this process may be root."""
    sys.path.clear()
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]


def _supervise_sshd(
    start: Callable[[], int], listener: socket.socket, reporter: Pid1Reporter, when_ready: Callable[[], None]
) -> bool:
    """Keep the SSH server running, and call `when_ready` once.

    Returns when the dev server is to end. True: the reservation's command has ended. False: the SSH server did not
    start.
    """
    is_ready, failures = False, 0
    while True:
        began = time.monotonic()
        child = start()
        status = None if is_ready else _wait_for_ssh_banner(listener, child)
        if status is None:
            if not is_ready:
                is_ready = True
                reporter.report_ready()
                when_ready()
            status = _wait_for_child(child)
        if is_ready and os.waitstatus_to_exitcode(status) == EXIT_COMMAND_ENDED:
            return True
        exit_text = describe_exit_status(status)
        sys.stderr.write(f"the ssh server was {exit_text}; starting it again\n")
        failures = 0 if time.monotonic() - began > _HEALTHY_AFTER_S else failures + 1
        if not is_ready and failures >= _MAX_FAILURES:
            reporter.report_failure(f"the ssh server did not start: {exit_text}")
            return False
        if failures > 1:
            time.sleep(backoff(failures - 1, _FIRST_PAUSE_S, _MAX_PAUSE_S))


def _fork_sshd(config: SshdConfig, launch: LaunchSpec, listeners: tuple[socket.socket, ...]) -> int:
    parent_pid = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        kept = _not_none(config.jupyter_report, config.command_exit_report, config.lifeline)
        close_descriptors({0, 1, 2, *(listener.fileno() for listener in listeners), *kept})
        if launch.max_processes is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (launch.max_processes, launch.max_processes))
        namespaces.drop_privileges(launch)
        if linux.IS_LINUX:
            linux.set_process_name("gpu-dev-sshd")
            linux.die_with_parent(parent_pid)
        # The uid may have no entry in /etc/passwd, and libraries look up the home.
        os.environ.update(HOME=config.home, LANG="C.UTF-8", PATH=os.defpath)
        run_sshd(config, *listeners)
    except BaseException:  # noqa: BLE001 - nothing else can report it
        traceback.print_exc()
    finally:
        os._exit(1)  # a forked process must never run on in its parent's code


def _open_lifeline() -> int:
    """A pipe that reaches its end when this process ends: only this process has the other end, and keeps it open."""
    reading, _ = os.pipe()
    return reading


def _not_none(*descriptors: int | None) -> tuple[int, ...]:
    return tuple(descriptor for descriptor in descriptors if descriptor is not None)


def _wait_for_ssh_banner(listener: socket.socket, child: int) -> int | None:
    """None when the SSH server sends its banner. Its wait status when it ended before."""
    with socket.socket(listener.family, socket.SOCK_STREAM) as client:
        host, port, *more = listener.getsockname()
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        client.connect((loopback.get(host, host), port, *more))
        client.settimeout(_BANNER_POLL_S)
        while True:
            try:
                if client.recv(4) == b"SSH-":
                    return None
                return _wait_for_child(child)  # it accepted and closed the connection: it is about to end
            except TimeoutError:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid == child:
                    return status
            except ConnectionError:
                return _wait_for_child(child)


def _wait_for_child(child: int) -> int:
    """Reap orphans until this child ends. Returns its wait status."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _exit_successfully(launch: LaunchSpec) -> NoReturn:
    if not launch.mode.has_namespaces:
        _kill_everything()
    os._exit(0)


def _kill_everything() -> NoReturn:
    """Kill all descendants, then end: without a pid namespace the kernel does not do it.

    On Linux it kills direct children only: an orphan becomes a child of this process and is killed in the next round,
    and the pid of an own child cannot have passed to another process.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    list_processes = children_of if linux.IS_LINUX else descendants_of
    try:
        while time.monotonic() < deadline:
            for pid in list_processes(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    except ChildProcessError:
        os._exit(0)
    os._exit(EXIT_KILL_INCOMPLETE)


def close_descriptors(keep: set[int]) -> None:
    """Close all other descriptors."""
    listing = "/proc/self/fd" if linux.IS_LINUX else "/dev/fd"
    for name in os.listdir(listing):  # noqa: PTH208 - names, not paths
        fd = int(name)
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                continue  # the listing's own descriptor is closed already
