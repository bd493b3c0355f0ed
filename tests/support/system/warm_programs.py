"""Our programs as processes of their own, each forked from one that has loaded it: a sixth of the cost of starting
Python anew.

    done = run_warm(CLIENT, ["list", "--json"], environment)  # like subprocess.run(..., capture_output=True, text=True)

What is the same: arguments, environment, working directory, streams, signals, exit code, and that it is a process.
What is not: nothing is imported on the way, and Python's own start has seen another environment; where that makes a
difference the program is started anew. So do tests of what is loaded, of terminals, and of services.

`python -m support.warm_programs SOCKET MODULE PACKAGE…` is the process that forks; it ends with its standard input.
"""

import atexit
import contextlib
import importlib
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOCALE = "C.UTF-8"
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Program:
    module: str
    main: str
    """The module whose `main` it is."""
    packages: tuple[str, ...]
    """What it loads sooner or later."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module]


CLIENT = Program("gpudev.cli", "gpudev.cli.main", ("gpudev.cli",))
SERVER = Program("gpudev.main", "gpudev.main", ("gpudev.server_cli", "gpudev.bootstrap"))


def run_program(
    program: Program, arguments: Sequence[str], environment: Mapping[str, str], *, timeout: float = 60
) -> "subprocess.CompletedProcess[str]":
    """Warm where that makes no difference, else anew; with nothing on its standard input."""
    if can_run_warm(environment):
        return run_warm(program, arguments, environment, timeout=timeout)
    return subprocess.run(
        [*program.command, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def can_run_warm(environment: Mapping[str, str]) -> bool:
    """Whether Python would start in this environment as the warm process did."""
    return environment.get("LC_ALL", _LOCALE) == _LOCALE and not any(name.startswith("PYTHON") for name in environment)


def run_warm(
    program: Program,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: str = "",
    cwd: Path | None = None,
    timeout: float = 60,
) -> "subprocess.CompletedProcess[str]":
    request = {"arguments": [*arguments], "environment": {**environment}, "cwd": str(cwd or Path.cwd())}
    with tempfile.TemporaryFile() as given, contextlib.ExitStack() as stack:
        given.write(stdin.encode("utf-8", "surrogateescape"))
        given.seek(0)
        ends = [os.pipe() for _ in ("stdout", "stderr")]
        said = [stack.enter_context(open(ours, "rb", buffering=0)) for ours, _ in ends]
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(_warm_process(program))
            theirs = [end for _, end in ends]
            try:
                socket.send_fds(line, [json.dumps(request).encode() + b"\n"], [given.fileno(), *theirs])
            finally:
                for end in theirs:
                    os.close(end)
            answers = line.makefile("r")
            pid = int(answers.readline())
            try:
                output, errors = _read_all(said, time.monotonic() + timeout)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, timeout) from None
            status = int(answers.readline())
            answers.close()
    code = os.waitstatus_to_exitcode(status)
    return subprocess.CompletedProcess(
        [*program.command, *arguments], code, *(text.decode("utf-8", "surrogateescape") for text in (output, errors))
    )


def _read_all(pipes: list[io.FileIO], deadline: float) -> list[bytes]:
    """Of both at once, until both have ended."""
    heard = {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as ready:
        for pipe in pipes:
            ready.register(pipe, selectors.EVENT_READ)
        while ready.get_map():
            events = ready.select(max(0.0, deadline - time.monotonic()))
            if not events and time.monotonic() > deadline:
                raise TimeoutError
            for key, _ in events:
                pipe = next(pipe for pipe in pipes if pipe is key.fileobj)
                data = pipe.read(65536)
                if data:
                    heard[pipe] += data
                else:
                    ready.unregister(pipe)
    return [bytes(heard[pipe]) for pipe in pipes]


_starting = threading.Lock()
_started: dict[tuple[int, Program], str] = {}


def _warm_process(program: Program) -> str:
    """The address of this process's own, started when it is first needed."""
    with _starting:
        mine = (os.getpid(), program)
        if mine not in _started:
            folder = tempfile.mkdtemp(prefix="gpu-dev-warm-")
            address = str(Path(folder) / "socket")
            process = subprocess.Popen(
                [sys.executable, "-m", "support.system.warm_programs", address, program.main, *program.packages],
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "LC_ALL": _LOCALE,
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.stdout.close()
            atexit.register(_end, process, Path(folder))
            _started[mine] = address
        return _started[mine]


def _end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    (folder / "socket").unlink(missing_ok=True)
    folder.rmdir()


# --- The process that forks ------------------------------------------------------------------------------------------


def serve(address: str, main: str, packages: list[str]) -> None:
    run = importlib.import_module(main).main
    for package in packages:
        _load_all(package)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those who wait for a command are waited for by nobody
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as ready:
        door.bind(address)
        door.listen(64)
        ready.register(door, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            if any(key.fileobj is sys.stdin for key, _ in ready.select()):
                return
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _answer(line, run)
            line.close()


def _load_all(name: str) -> None:
    """All that is in it, but for what starts by being imported, and what needs a package that not everybody has."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module.name)


def _answer(line: socket.socket, run: Callable[[], None]) -> None:
    """In a process of its own: start the command, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, descriptors, _, _ = socket.recv_fds(line, _LARGEST, 3)
    while not data.endswith(b"\n"):
        data += line.recv(_LARGEST)
    request = json.loads(data)
    child = os.fork()
    if child == 0:
        line.close()
        _become(request, descriptors)
        _end_like_python(run)
    for descriptor in descriptors:
        os.close(descriptor)
    line.sendall(f"{child}\n".encode())
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(BrokenPipeError):
        line.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[arg-type, call-overload]
    time.tzset()
    os.chdir(str(request["cwd"]))
    sys.argv = [sys.argv[0], *request["arguments"]]  # type: ignore[misc]
    sys.stdin, sys.stdout = _stream(0, "r", "surrogateescape"), _stream(1, "w", "surrogateescape")
    sys.stderr = _stream(2, "w", "backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _end_like_python(run: Callable[[], None]) -> None:
    code = 0
    try:
        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _stream(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    binary = open(descriptor, f"{mode}b", closefd=False)  # noqa: SIM115 - for the rest of this process's life
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=descriptor == 2)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3:])
