"""One session channel: a shell, a command or sftp, as a child process connected to the channel.

The session ends when the child has ended *and* all its output has been sent. Either alone would lose output.
"""

import gc
import os
import pwd
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.logging import SSHLogger
from asyncssh.logging import logger as asyncssh_logger
from asyncssh.sftp import SFTPServerHandler

from gpudev.adapters.local.sshd import asyncssh_compat
from gpudev.adapters.local.sshd.child_process import ChildWatcher, execute, spawn
from gpudev.adapters.local.sshd.sshd_config import SshdConfig, session_environment
from gpudev.adapters.local.sshd.streams import ChildInput, ChildOutput
from gpudev.adapters.local.sshd.terminal import Size, Terminal, open_terminal, resize, send_break
from gpudev.adapters.local.sshd.terminal_messages import TerminalMessages

_Channel = asyncssh.SSHServerChannel[bytes]

_FALLBACK_SHELL = "/bin/sh"
_EXIT_CANNOT_START = 254
# RFC 4254, section 6.10
_PORTABLE_SIGNALS = {"ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2"}


@dataclass(frozen=True, slots=True)
class SshdContext:
    """What all sessions of a server share."""

    config: SshdConfig
    messages: TerminalMessages
    children: ChildWatcher


class ChannelSession(asyncssh_compat.OpenSshSession):
    def __init__(self, context: SshdContext) -> None:
        self._context = context
        self._channel: _Channel
        self._terminal: Terminal | None = None
        self._command: bytes | None = None
        self._is_sftp = False
        self._pid: int | None = None
        self._wait_status: int | None = None
        self._input: ChildInput | None = None
        self._outputs: dict[ChildOutput, int | None] = {}
        self._paused_by: set[str] = set()
        self._receives_messages = False

    # Requests of the client

    def connection_made(self, chan: _Channel) -> None:
        self._channel = chan

    def pty_requested(self, term_type: str, term_size: Size, term_modes: Mapping[int, int]) -> bool:
        try:
            self._terminal = open_terminal(term_type, term_size, term_modes)
        except OSError:
            return False
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self._command = command.encode("utf-8", "surrogateescape")
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        self._is_sftp = subsystem == "sftp"
        return self._is_sftp

    def session_started(self) -> None:
        try:
            if self._terminal:
                self._start_on_terminal(self._terminal)
            else:
                self._start_on_pipes()
        except OSError as error:  # out of processes or descriptors, by the user's own limits
            self._close_streams()
            self._channel.write_stderr(f"gpu-dev: cannot start a process: {error.strerror}\r\n".encode())
            self._channel.exit(_EXIT_CANNOT_START)

    # Starting the child

    def _start_on_terminal(self, terminal: Terminal) -> None:
        if self._command is None:
            self._write_banner()
        # Two descriptors, so that each direction closes its own. The terminal hangs up when both are closed.
        incoming = os.dup(terminal.master)
        try:
            self._start((terminal.slave, terminal.slave, terminal.slave), on_terminal=True)
        except OSError:
            os.close(incoming)
            raise
        os.close(terminal.slave)
        self._input = ChildInput(incoming, self._let_client_send)
        self._add_output(terminal.master, None)
        self._context.messages.attach(self._show_message)
        self._receives_messages = True

    def _start_on_pipes(self) -> None:
        with ExitStack() as theirs, ExitStack() as ours:
            their_in, our_in = _pipe(theirs, ours)
            our_out, their_out = _pipe(ours, theirs)
            our_err, their_err = _pipe(ours, theirs)
            self._start((their_in, their_out, their_err), on_terminal=False)
            ours.pop_all()  # from here on the streams close them
        self._input = ChildInput(our_in, self._let_client_send)
        self._add_output(our_out, None)
        self._add_output(our_err, asyncssh.EXTENDED_DATA_STDERR)

    def _start(self, stdio: tuple[int, int, int], *, on_terminal: bool) -> None:
        self._pid = spawn(self._child_action(), stdio, home=self._context.config.home, on_terminal=on_terminal)
        self._context.children.watch(self._pid, self._child_ended)

    def _child_action(self) -> Callable[[], object]:
        """The function that the child calls after the fork."""
        shell = choose_shell(self._context.config)
        environment = session_environment(
            self._context.config, shell, self._channel.get_environment_bytes(), self._session_variables()
        )
        name = Path(shell).name.encode()
        if self._is_sftp:
            program = find_sftp_server(self._context.config.sftp_servers)
            if program is None:
                return partial(serve_sftp, str(self._channel.get_extra_info("client_version", "")))
            return partial(execute, program, [program.encode()], environment)
        if self._command is not None:
            return partial(execute, shell, [name, b"-c", self._command], environment)
        return partial(execute, shell, [b"-" + name], environment)

    def _session_variables(self) -> dict[str, str]:
        variables = {}
        peer, here = self._channel.get_extra_info("peername"), self._channel.get_extra_info("sockname")
        if peer and here:
            variables["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {here[0]} {here[1]}"
            variables["SSH_CLIENT"] = f"{peer[0]} {peer[1]} {here[1]}"
        if agent := self._channel.get_agent_path():
            variables["SSH_AUTH_SOCK"] = agent
        if self._terminal:
            variables["SSH_TTY"] = self._terminal.path
            variables["TERM"] = self._terminal.kind or "dumb"
        return variables

    def _write_banner(self) -> None:
        config = self._context.config
        with suppress(OSError):
            if config.motd_path and not Path(config.home, ".hushlogin").exists():
                self._channel.write(Path(config.motd_path).read_bytes().replace(b"\n", b"\r\n"))
        self._channel.write(self._context.messages.banner())

    # From the child to the client

    def _add_output(self, fd: int, datatype: int | None) -> None:
        output = ChildOutput(fd, partial(self._write_output, datatype), self._output_ended)
        self._outputs[output] = datatype
        if self._paused_by:
            output.pause()

    def _write_output(self, datatype: int | None, data: bytes) -> None:
        with suppress(BrokenPipeError):  # the client has just closed the channel
            self._channel.write(data, datatype)

    def _show_message(self, message: bytes) -> None:
        self._write_output(None, message)

    def pause_writing(self) -> None:
        self._set_paused("channel", True)

    def resume_writing(self) -> None:
        self._set_paused("channel", False)

    def congestion_changed(self, is_congested: bool) -> None:
        self._set_paused("connection", is_congested)

    def _set_paused(self, cause: str, is_full: bool) -> None:
        """Pause the child's output while the channel's window or the connection is full."""
        was_paused = bool(self._paused_by)
        (self._paused_by.add if is_full else self._paused_by.discard)(cause)
        if bool(self._paused_by) != was_paused:
            for output in self._outputs:
                output.pause() if is_full else output.resume()

    def output_unwanted(self) -> None:
        if self._terminal is None:
            for output in [output for output, datatype in self._outputs.items() if datatype is None]:
                output.close()
                self._output_ended(output)

    # From the client to the child

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._input:
            self._input.feed(data)

    def eof_received(self) -> bool:
        if self._input:
            self._input.finish()
        return True  # the other direction remains open: the child may still answer

    def _let_client_send(self, may_send: bool) -> None:
        if may_send:
            self._channel.resume_reading()
        else:
            self._channel.pause_reading()

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._terminal and self._outputs:
            resize(self._terminal.master, (width, height, pixwidth, pixheight))

    def break_received(self, msec: int) -> bool:
        if self._terminal and self._outputs:
            send_break(self._terminal.master)
            return True
        return False

    def signal_received(self, signal: str) -> None:
        if number := signal_number(signal):
            self._signal_child(number)

    def _signal_child(self, number: int) -> None:
        if self._pid is not None and self._wait_status is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    # End of the session

    def _output_ended(self, output: ChildOutput) -> None:
        self._outputs.pop(output, None)
        self._end_if_complete()

    def _child_ended(self, wait_status: int) -> None:
        self._wait_status = wait_status
        if self._terminal:  # background jobs that still have the terminal lose it
            for output in self._outputs:
                output.end_when_empty()
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._wait_status is None or self._outputs:
            return
        status = self._wait_status
        self._close_streams()
        if os.WIFSIGNALED(status):
            self._channel.exit_with_signal(signal_name(os.WTERMSIG(status)), os.WCOREDUMP(status))
        else:
            self._channel.exit(os.WEXITSTATUS(status))

    def connection_lost(self, exc: Exception | None) -> None:
        """A child on a terminal gets a hangup. One on pipes may continue, as long as it neither reads nor writes.
        sftp is stopped: it has nothing left to do, and may block in a file where it would never notice."""
        self._close_streams()
        if self._is_sftp:
            self._signal_child(signal.SIGTERM)

    def _close_streams(self) -> None:
        if self._input:
            self._input.close()
        for output in list(self._outputs):
            output.close()
        self._outputs.clear()
        if self._terminal and self._pid is None:  # no child was started on it
            os.close(self._terminal.master)
            os.close(self._terminal.slave)
            self._terminal = None
        if self._receives_messages:
            self._receives_messages = False
            self._context.messages.detach(self._show_message)


def choose_shell(config: SshdConfig) -> str:
    return config.shell if os.access(config.shell, os.X_OK) else _FALLBACK_SHELL


def _pipe(readers: ExitStack, writers: ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with their stacks."""
    reader, writer = os.pipe()
    readers.callback(os.close, reader)
    writers.callback(os.close, writer)
    return reader, writer


def signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name.removeprefix("SIG")
    except ValueError:  # a real-time signal
        name = str(number)
    return name if name in _PORTABLE_SIGNALS else f"SIG{name}@openssh.com"


def signal_number(name: str) -> int | None:
    return getattr(signal, f"SIG{name}").value if name in _PORTABLE_SIGNALS else None


# sftp: the system's own sftp-server where there is one, else asyncssh's. That one runs in a child too, because opening
# a named pipe or a file of a dead network mount blocks, and must not block other sessions.


_PROTOCOL_VERSION = 3  # what OpenSSH's clients speak


def find_sftp_server(paths: Iterable[str]) -> str | None:
    """None: use asyncssh's."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # a uid without a name, for which OpenSSH's server does not run
        return None
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def serve_sftp(client_version: str) -> None:
    """Serve on the standard descriptors until the client ends. For a child process: it blocks."""
    gc.freeze()  # collecting our parent's garbage here would close descriptors by number, which are ours now
    pipe = _Pipe(client_version)
    server = _Files(cast("asyncssh.SSHServerChannel[bytes]", pipe))
    handler = SFTPServerHandler(server, cast(Any, pipe), cast(Any, pipe), _PROTOCOL_VERSION)
    _drive(handler.run())


def _drive(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never suspends: it only uses the pipe, which blocks.

    So it needs no event loop. None could be started cleanly in a child that was forked from within one.
    """
    try:
        work.send(None)
    except (StopIteration, EOFError):
        return
    raise RuntimeError("the sftp server waited for something that is not its pipe")


class _Files(asyncssh.SFTPServer):
    """Shows uids and gids as numbers: a name lookup may need a lock that a thread of our parent held at the fork."""

    def format_user(self, uid: int | None) -> str:
        return str(uid)

    def format_group(self, gid: int | None) -> str:
        return str(gid)


class _Pipe:
    """Replaces the reader, the writer and the channel that asyncssh's sftp server expects."""

    logger: SSHLogger = asyncssh_logger

    def __init__(self, client_version: str) -> None:
        self._client_version = client_version

    @property
    def channel(self) -> "_Pipe":
        return self

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._client_version if name == "client_version" else default

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    async def readexactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(0, size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]
