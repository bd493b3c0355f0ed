"""`gpu-dev` as a process of its own, forked from one that has loaded it: a sixth of what starting Python anew costs.

    done = run_warm(["list", "--json"], environment)        # like subprocess.run(..., capture_output=True, text=True)

What is the same: arguments, environment, working directory, streams, signals, exit code, and that it is a process.
What is not: nothing is imported on the way, and Python's own start has seen another environment. Hence `can_run_warm`;
tests of what the client loads, and of terminals, start the real thing.

`python -m support.warm_cli SOCKET` is the process that forks; it ends with its standard input.
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
from pathlib import Path

PROGRAM = [sys.executable, "-m", "gpudev.cli"]
_LOCALE = "C.UTF-8"
_LARGEST = 1 << 20


def can_run_warm(environment: dict[str, str]) -> bool:
    """Whether Python would start in this environment as the warm process did."""
    return environment.get("LC_ALL", _LOCALE) == _LOCALE and not any(name.startswith("PYTHON") for name in environment)


def run_warm(
    arguments: list[str],
    environment: dict[str, str],
    *,
    stdin: str = "",
    cwd: Path | None = None,
    timeout: float = 60,
) -> "subprocess.CompletedProcess[str]":
    request = {"arguments": arguments, "environment": environment, "cwd": str(cwd or Path.cwd())}
    with tempfile.TemporaryFile() as given, contextlib.ExitStack() as stack:
        given.write(stdin.encode("utf-8", "surrogateescape"))
        given.seek(0)
        ends = [os.pipe() for _ in ("stdout", "stderr")]
        said = [stack.enter_context(open(ours, "rb", buffering=0)) for ours, _ in ends]
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(_warm_process())
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
        ["gpu-dev", *arguments], code, *(text.decode("utf-8", "surrogateescape") for text in (output, errors))
    )


def run_anew(
    arguments: list[str], environment: dict[str, str], *, timeout: float = 60
) -> "subprocess.CompletedProcess[str]":
    """The same, slowly."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
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
_started: dict[int, str] = {}


def _warm_process() -> str:
    """The address of this process's own, started when it is first needed."""
    with _starting:
        if os.getpid() not in _started:
            folder = tempfile.mkdtemp(prefix="gpu-dev-cli-")
            address = str(Path(folder) / "socket")
            process = subprocess.Popen(
                [sys.executable, "-m", "support.warm_cli", address],
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "LC_ALL": _LOCALE,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.stdout.close()
            atexit.register(_end, process, Path(folder))
            _started[os.getpid()] = address
        return _started[os.getpid()]


def _end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    (folder / "socket").unlink(missing_ok=True)
    folder.rmdir()


# --- The process that forks ------------------------------------------------------------------------------------------


def serve(address: str) -> None:
    _load_all("gpudev.cli")
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
                _answer(line)
            line.close()


def _load_all(name: str) -> None:
    """Everything the client may import on its way, but its `__main__`."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith(("__main__", ".login_aws")):  # for botocore is not everywhere
            importlib.import_module(module.name)


def _answer(line: socket.socket) -> None:
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
    for descriptor in descriptors:
        os.close(descriptor)
    line.sendall(f"{child}\n".encode())
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(BrokenPipeError):
        line.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    from gpudev.cli.main import main

    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[arg-type, call-overload]
    time.tzset()
    os.chdir(str(request["cwd"]))
    sys.argv = ["gpu-dev", *request["arguments"]]  # type: ignore[misc]
    sys.stdin, sys.stdout = _stream(0, "r", "surrogateescape"), _stream(1, "w", "surrogateescape")
    sys.stderr = _stream(2, "w", "backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    try:
        main()
    except BaseException:  # noqa: BLE001 - as Python itself would end
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(1)


def _stream(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    binary = open(descriptor, f"{mode}b", closefd=False)  # noqa: SIM115 - for the rest of this process's life
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=descriptor == 2)


if __name__ == "__main__":
    serve(sys.argv[1])
