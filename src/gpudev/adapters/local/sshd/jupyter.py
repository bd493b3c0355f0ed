"""Supervises Jupyter in a dev server as its spec file demands, and reads and writes that file.

The control plane writes Jupyter's spec, and the supervisor writes a report on it. Both formats are here.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.sshd import jupyter_socket
from gpudev.adapters.local.sshd.child_process import ChildWatcher, execute, spawn
from gpudev.adapters.local.sshd.sshd_config import SshdConfig, WatchedFile, session_environment
from gpudev.domain.backoff import backoff
from gpudev.domain.sessions.addons import (
    INSTALL_JUPYTER_COMMAND,
    JUPYTER_ENVIRONMENT,
    OUTDATED_SERVER_ERROR,
    JupyterSpec,
    JupyterState,
    JupyterStatus,
)
from gpudev.domain.untrusted_json import parse_untrusted_json

JUPYTER_LOGIN = "jupyter"
"""The control plane logs in under this name, with a key that is only for Jupyter."""
_LOG = ".cache/gpu-dev/jupyter.log"
_EXIT_NOT_INSTALLED = 127
_READY_TIMEOUT_S = 90.0
_POLL_S = 0.25
_RESPONSE_TIMEOUT_S = 5.0
_HEALTHY_AFTER_S = 60.0
_MAX_FAILURES = 3
_STOP_TIMEOUT_S = 5.0
_LOG_TAIL = 2048
_OWN_LOG_LINE = "gpu-dev: "
JUPYTER_MISSING = f"there is no JupyterLab in this dev server; `{INSTALL_JUPYTER_COMMAND}` installs it there"
_NEEDED_VERSION = "JupyterLab 3 or later is needed (`pip install --upgrade jupyterlab`)"
# Fixed text: variable parts arrive as arguments and variables.
_START = (
    'if command -v jupyter-lab >/dev/null 2>&1; then exec jupyter-lab "$@"; fi; '
    "if python3 -c 'import jupyterlab' 2>/dev/null; then exec python3 -m jupyterlab \"$@\"; fi; "
    f'own="$HOME/{JUPYTER_ENVIRONMENT}/bin/jupyter-lab"; if [ -x "$own" ]; then exec "$own" "$@"; fi; '
    f"exit {_EXIT_NOT_INSTALLED}"
)


@dataclass(frozen=True, slots=True)
class JupyterOptions:
    token: str
    public_key: str
    base_url: str

    @classmethod
    def parse(cls, text: str) -> "JupyterOptions | None":
        """None: Jupyter is off. The same for text that is invalid: we did not write it."""
        try:
            fields = parse_untrusted_json(text)
            return cls(str(fields["token"]), str(fields["public_key"]), str(fields["base_url"]))
        except (ValueError, TypeError, KeyError):
            return None


class JupyterSupervisor:
    def __init__(self, config: SshdConfig, shell: Callable[[], str], children: ChildWatcher) -> None:
        self._config = config
        self._shell = shell
        self._children = children
        self._file = WatchedFile(config.jupyter_path or "")
        self._text = ""
        self._options: JupyterOptions | None = None
        self._socket_path: str | None = None
        self._pid: int | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._unwritten_report: bytes | None = None

    @property
    def socket_path(self) -> str | None:
        """None: Jupyter does not answer."""
        return self._socket_path

    @property
    def public_key(self) -> str | None:
        """The key that may connect to it. None: Jupyter is off."""
        return None if self._options is None else self._options.public_key

    def reload(self) -> None:
        if self._config.jupyter_path is None:
            return
        self._write_report()
        text = self._file.read_if_changed()
        if text is None or text == self._text:
            return
        previous = self._supervising
        self._text, self._options, self._socket_path = text, JupyterOptions.parse(text), None
        if previous is not None:
            previous.cancel()
        self._supervising = asyncio.create_task(self._supervise(self._options, previous), name="jupyter")

    async def _supervise(self, options: JupyterOptions | None, previous: "asyncio.Task[None] | None") -> None:
        """Keep Jupyter running with these options, after the process with the previous ones has ended."""
        if previous is not None:
            await asyncio.wait({previous})
        if options is None:
            return
        try:
            reason = await self._run_repeatedly(options)
        except Exception as error:  # noqa: BLE001 - without a report it would be "starting" for ever
            reason = f"unexpected error ({type(error).__name__}: {error})"
        self._report("failed", reason)

    async def _run_repeatedly(self, options: JupyterOptions) -> str:
        """Run Jupyter, again after a failure, until that is hopeless. Returns the last reason."""
        failures = 0
        while True:
            self._report("starting")
            began = time.monotonic()
            reason = await self._run_once(options)
            failures = 0 if time.monotonic() - began > _HEALTHY_AFTER_S else failures + 1
            if failures >= _MAX_FAILURES or reason == JUPYTER_MISSING:
                return reason
            await asyncio.sleep(backoff(failures + 1, _POLL_S))

    async def _run_once(self, options: JupyterOptions) -> str:
        """Run Jupyter until it ends. Returns the reason as text for people."""
        try:
            path = jupyter_socket.make_socket_path(jupyter_socket.candidate_parents(self._config.environment))
        except OSError as error:
            return f"there is no place for its socket: {error.strerror}"
        try:
            return await self._run_on_socket(options, path)
        finally:
            jupyter_socket.remove_socket_folder(path)

    async def _run_on_socket(self, options: JupyterOptions, path: str) -> str:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            self._pid = pid = self._start(options, path)
        except OSError as error:
            return f"no process could be started: {error.strerror}"
        self._children.watch(pid, lambda status: None if ended.done() else ended.set_result(status))
        try:
            if not await self._wait_until_ready(options, path, ended):
                return self._describe_silence(path)
            if not ended.done():
                self._socket_path = path
                self._report("ready")
            await asyncio.wait({ended})  # awaiting the future itself would cancel it with us
        finally:
            self._socket_path = None
            await asyncio.shield(_stop_jupyter(pid, ended))
        code = os.waitstatus_to_exitcode(ended.result())
        if code == _EXIT_NOT_INSTALLED:
            return JUPYTER_MISSING
        reason = f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        return reason + self._last_log_line()

    def _describe_silence(self, path: str) -> str:
        if os.path.lexists(path):
            return f"it did not answer within {_READY_TIMEOUT_S:g} s{self._last_log_line()}"
        return f"it did not open its socket within {_READY_TIMEOUT_S:g} s; {_NEEDED_VERSION}{self._last_log_line()}"

    async def _wait_until_ready(self, options: JupyterOptions, path: str, ended: "asyncio.Future[int]") -> bool:
        """False: not ready in time. True also when it ended meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_TIMEOUT_S):
                while not ended.done() and not await _is_answering(options, path):  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(_POLL_S)
                return True
        return False

    def _start(self, options: JupyterOptions, path: str) -> int:
        shell, home, parent_pid = self._shell(), self._config.home, os.getpid()
        environment = session_environment(self._config, shell, {}, {"JUPYTER_TOKEN": options.token, "TERM": "xterm"})
        arguments = [shell, "-lc", _START, "gpu-dev-jupyter", *jupyter_arguments(options, path, home)]
        argv = [argument.encode() for argument in arguments]

        def work() -> None:
            if linux.IS_LINUX:
                linux.die_with_parent(parent_pid)
            execute(shell, argv, environment)

        stdin, log = os.open(os.devnull, os.O_RDONLY), self._open_log()
        try:
            return spawn(work, (stdin, log, log), home=home, on_terminal=False)
        finally:
            os.close(stdin)
            os.close(log)

    def _open_log(self) -> int:
        path = Path(self._config.home, _LOG)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # O_NONBLOCK: a named pipe in its place must not stop the SSH server.
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
            with contextlib.suppress(OSError):
                os.write(
                    log, f"{_OWN_LOG_LINE}starting JupyterLab for request {fingerprint(self._text)[:8]}\n".encode()
                )
            return log
        except OSError:  # a home that is full or not writable: Jupyter will fail with its own message
            return os.open(os.devnull, os.O_WRONLY)

    def _last_log_line(self) -> str:
        try:
            with open(Path(self._config.home, _LOG), "rb", opener=_open_without_waiting) as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        printable = ["".join(letter for letter in line if letter.isprintable()).strip() for line in lines]
        last = [line for line in printable if line and not line.startswith(_OWN_LOG_LINE)][-1:]
        return f" (~/{_LOG}: {last[0][:200]})" if last else ""

    def _report(self, state: str, reason: str | None = None) -> None:
        fields = {"wish": fingerprint(self._text), "state": state, "reason": reason}
        self._unwritten_report = json.dumps(fields).encode()
        self._write_report()

    def _write_report(self) -> None:
        """Overwrite the report: only the current state matters. On a full disk, `reload` tries again."""
        fd, text = self._config.jupyter_report, self._unwritten_report
        if fd is None or text is None:
            return
        with contextlib.suppress(OSError):
            written = os.pwrite(fd, text, 0)
            os.ftruncate(fd, written)
            if written == len(text):
                self._unwritten_report = None


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def jupyter_arguments(options: JupyterOptions, path: str, home: str) -> list[str]:
    """The token is not among them: every user of a machine can read the arguments of a process."""
    arguments = [
        "--no-browser",
        f"--ServerApp.sock={path}",
        "--ServerApp.sock_mode=0600",
        # Jupyter's default, which it ignores beside a socket. Any other port, from its user's configuration, would
        # make it give up.
        "--ServerApp.port=8888",
        f"--ServerApp.base_url={options.base_url}",
        f"--ServerApp.root_dir={home}",
        "--ServerApp.open_browser=False",
        # People reach it through the API, under any host name.
        "--ServerApp.allow_remote_access=True",
    ]
    return [*arguments, "--ServerApp.allow_root=True"] if os.geteuid() == 0 else arguments


async def _is_answering(options: JupyterOptions, path: str) -> bool:
    try:
        async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
            client = await jupyter_socket.connect_to_own_socket(path)
            reader, writer = await asyncio.open_unix_connection(sock=client)
            try:
                writer.write(
                    f"GET {options.base_url}api/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    f"Authorization: token {options.token}\r\n\r\n".encode()
                )
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False


async def _stop_jupyter(pid: int, ended: "asyncio.Future[int]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if ended.done():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        await asyncio.wait({ended}, timeout=_STOP_TIMEOUT_S)


# The control plane's end of the two files

_MAX_REASON_LENGTH = 1000


def jupyter_spec_to_text(spec: JupyterSpec | None) -> str:
    return "" if spec is None else json.dumps(asdict(spec))


def parse_jupyter_report(report: str | None, spec: JupyterSpec) -> JupyterStatus:
    """The status of this spec. A report on another spec, or an invalid one, counts as `starting`.

    The report is untrusted: users can write it.
    """
    if report is None:
        return JupyterStatus(JupyterState.FAILED, OUTDATED_SERVER_ERROR)
    starting = JupyterStatus(JupyterState.STARTING)
    try:
        fields = parse_untrusted_json(report)
        if fields["wish"] != fingerprint(jupyter_spec_to_text(spec)):
            return starting
        state = JupyterState(fields["state"])
        reason = None if fields["reason"] is None else str(fields["reason"])
    except (ValueError, TypeError, KeyError):
        return starting
    if state is not JupyterState.FAILED:
        return JupyterStatus(state)
    printable = "".join(letter for letter in reason or "no reason given" if letter.isprintable())
    return JupyterStatus(state, printable[:_MAX_REASON_LENGTH])
