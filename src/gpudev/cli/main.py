"""The program's entry point: fast paths first, then the full command line, then a clean exit.

It imports almost nothing, so that `gpu-dev --help` costs little more than starting Python.
"""

import contextlib
import gc
import os
import sys
from typing import NoReturn

from gpudev.cli import COMPLETION_VARIABLE

_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main() -> NoReturn:
    # A process of a tenth of a second needs no garbage collection; commands that wait enable it again.
    gc.disable()
    _open_missing_streams()
    if not os.environ.get("GPU_DEV_DEBUG"):
        # An interrupt can leave partly constructed objects; Python would print a traceback when it destroys them.
        sys.unraisablehook = lambda _unraisable: None
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules load; `invoke` handles later ones
        code = _INTERRUPTED
    _exit_process(code)


def run(arguments: list[str]) -> int:
    """Run the program with these arguments; return the exit code."""
    if COMPLETION_VARIABLE not in os.environ:
        if arguments in (["--help"], ["-h"], ["help"]):
            from gpudev.cli.overview import help_page

            sys.stdout.write(help_page())
            return 0
        if arguments == ["--version"]:
            from gpudev.version import __version__

            sys.stdout.write(f"gpu-dev {__version__}\n")
            return 0
        if arguments[:1] == ["proxy-command"]:
            from gpudev.cli.proxy_tunnel import run_fast_path

            code = run_fast_path(arguments[1:])
            if code is not None:
                return code
    from gpudev.cli.app import invoke

    return invoke(arguments)


def _open_missing_streams() -> None:
    """Replace closed standard streams (`>&-`, None in Python) by /dev/null. Their descriptors must stay occupied, or a
    connection would get the number of standard input."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _exit_process(code: int) -> NoReturn:
    """Flush and exit without the interpreter's cleanup: it takes a tenth of the whole run, and it prints an error when
    the reader is gone (`gpu-dev list | head -1`)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _BROKEN_PIPE
    except (OSError, ValueError) as error:
        if code == 0:
            sys.stderr.write(f"Error: the output could not be written ({error}).\n")
            code = 8
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
