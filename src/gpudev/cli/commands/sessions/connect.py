"""`gpu-dev connect`, `exec`, `port-forward`, `cp` and `proxy-command`, over the system's ssh and scp."""

import os
import posixpath
import shlex
import shutil
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.sessions.connection_setup import (
    TrailingCommand,
    check_ports_are_free,
    choose_route,
    get_ready_job,
    parse_forwards,
    route_options,
)
from gpudev.cli.commands.signals import signals_as_interrupt
from gpudev.cli.exit_codes import CliError, ExitCode, local_error, usage_error
from gpudev.cli.job_selection import choose_job, list_live_jobs
from gpudev.cli.options import ID, is_id
from gpudev.sdk.remote import openssh, remote_commands
from gpudev.wire.reservations import JobView

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HOME = "/home/dev"
_EDITORS = {"code": ("vscode", "VS Code"), "cursor": ("cursor", "Cursor")}


@click.command(cls=TrailingCommand, options_metavar="[OPTIONS]")
@click.argument("job_id", metavar="[ID] [-- COMMAND...]", type=ID, required=False)
@click.option("--no-wait", is_flag=True, help="Fail if the dev server is not ready yet.")
@click.option("--code", is_flag=True, help="Open VS Code instead of a shell.")
@click.option("--cursor", is_flag=True, help="Open Cursor instead of a shell.")
@click.option("--folder", metavar="PATH", help=f"Folder to open with --code or --cursor.  [default: {_HOME}]")
@click.option(
    "--forward", "forwards", metavar="PORT", multiple=True, help="Forward a port to this machine; repeat for more."
)
@route_options
@click.pass_obj
def connect(
    command: tuple[str, ...],
    *,
    job_id: str | None,
    no_wait: bool,
    code: bool,
    cursor: bool,
    folder: str | None,
    forwards: tuple[str, ...],
    direct: bool,
    proxy: bool,
    api_url: str | None,
) -> None:
    """Open a shell on a dev server, or run a command there.

    ID is an id, a prefix of one, or a name; it may be omitted if you have only one reservation. One argument after --
    is a command line for the remote shell; several are passed unchanged. If the dev server cannot be reached directly,
    the connection goes through the API's HTTPS port.

    \b
    gpu-dev connect 3f2a9c1e
    gpu-dev connect 3f2a9c1e -- nvidia-smi -L
    gpu-dev connect -- 'cd project && make'
    gpu-dev connect --forward 8888
    gpu-dev connect --code
    """
    if (code and cursor) or ((code or cursor) and (command or forwards)):
        raise usage_error("--code and --cursor are mutually exclusive, and exclude a command and --forward")
    if (code or cursor) and (direct or proxy):
        raise usage_error(
            "--direct and --proxy do not apply to editors: they use ssh's configuration, which chooses the route"
        )
    if folder is not None and not (code or cursor):
        raise usage_error("--folder requires --code or --cursor", _cd_hint(folder))
    more = parse_forwards(forwards)
    session = CommandSession(api_url)
    check_ports_are_free(session, forwards)
    program = openssh.find_program()
    job = get_ready_job(session, job_id, wait=not no_wait)
    if code or cursor:
        _open_editor(session, job, "code" if code else "cursor", _remote_folder(folder or _HOME))
        return
    route = choose_route(session, job, direct=direct, proxy=proxy)
    openssh.replace_process(
        openssh.command_line(program, job, command, session.env, tty=output.can_ask(), proxy=route, more=more)
    )


@click.command("exec", cls=TrailingCommand, options_metavar="[OPTIONS]")
@click.argument("job_id", metavar="[ID] -- COMMAND...", type=ID, required=False)
@route_options
@click.pass_obj
def execute(command: tuple[str, ...], *, job_id: str | None, direct: bool, proxy: bool, api_url: str | None) -> None:
    """Run a command on a dev server, for scripts: no terminal, no questions; exits with its exit code.

    \b
    gpu-dev exec 3f2a9c1e -- nvidia-smi -L
    tar c project | gpu-dev exec -- 'tar x'
    """
    if not command:
        step = "A command for the dev server comes after `--`" if job_id else "`gpu-dev connect` opens a shell"
        raise usage_error("give a command after --", step)
    program = openssh.find_program()
    session = CommandSession(api_url)
    job = get_ready_job(session, job_id, may_ask=False)
    route = choose_route(session, job, direct=direct, proxy=proxy)
    more = ["-T", "-o", "BatchMode=yes"]
    remote = remote_commands.attached_command(command)
    openssh.replace_process(openssh.command_line(program, job, remote, session.env, tty=False, proxy=route, more=more))


@click.command("port-forward")
@click.argument("arguments", metavar="[ID] PORT...", nargs=-1, required=True)
@route_options
def port_forward(arguments: tuple[str, ...], direct: bool, proxy: bool, api_url: str | None) -> None:
    """Forward ports of a dev server to this machine, until Ctrl-C.

    PORT is 8888, 8888:80 (local:remote) or 8888:HOST:80 (HOST as the dev server resolves it).

    \b
    gpu-dev port-forward 8888
    gpu-dev port-forward 3f2a9c1e 8888 6006
    """
    session = CommandSession(api_url)
    job_id, forwards = _split_id_and_ports(session, arguments)
    more = parse_forwards(forwards)
    check_ports_are_free(session, forwards)
    program = openssh.find_program()
    job = get_ready_job(session, job_id)
    route = choose_route(session, job, direct=direct, proxy=proxy)
    for text in forwards:
        output.write_note(
            f"http://127.0.0.1:{text.split(':')[0]} is port {text.split(':')[-1]} of the dev server; Ctrl-C stops it"
        )
    line = openssh.command_line(program, job, (), session.env, tty=False, proxy=route, more=["-N", *more])
    click.get_current_context().exit(_run_until_interrupted(line))


def _complete_paths(context: click.Context, parameter: click.Parameter, prefix: str) -> "list[CompletionItem]":
    from gpudev.cli.shell_completion import complete_copy_paths  # slow to load

    return complete_copy_paths(context, parameter, prefix)


@click.command("cp")
@click.argument("paths", metavar="SOURCE... TARGET", nargs=-1, required=True, shell_complete=_complete_paths)
@click.option(
    "-r", "-p", "-a", "_ignored", is_flag=True, help="Accepted and ignored: folders and times are copied anyway."
)
@route_options
def copy(paths: tuple[str, ...], *, _ignored: bool, direct: bool, proxy: bool, api_url: str | None) -> None:
    """Copy files and folders to or from a dev server.

    A remote path begins with the id or name of the reservation and a colon, or with the colon alone if you have only
    one. A remote target that ends with a slash is a folder, which is created if necessary.

    \b
    gpu-dev cp train.py data :project/
    gpu-dev cp 3f2a9c1e:results.csv .
    gpu-dev cp training:out results
    """
    if len(paths) < 2:
        raise usage_error("give at least one source and a target", "gpu-dev cp train.py :project/")
    *sources, target = [_split_path(path) for path in paths]
    job_ids = {job_id for job_id, _ in sources} if target[0] is None else {target[0]}
    if (target[0] is None) == any(job_id is None for job_id, _ in sources) or len(job_ids) != 1:
        message = "copy local files to one dev server, or files of one dev server to this machine"
        raise usage_error(message, _colon_hint(paths) if target[0] is None else "")
    for job_id, path in sources:  # checked before any wait
        if job_id is None and not os.path.lexists(path):
            raise local_error(f"no local file {path}")
    program = openssh.find_program("scp")
    session = CommandSession(api_url)
    (job_id,) = job_ids
    job = get_ready_job(session, job_id or None)
    route = choose_route(session, job, direct=direct, proxy=proxy)
    if target[0] is not None and target[1].endswith("/"):
        _make_folder(session, job, target[1], route)
    named = [openssh.CopyPath(job_id is not None, path) for job_id, path in [*sources, target]]
    quiet = not sys.stderr.isatty()
    openssh.replace_process(openssh.copy_line(program, job, named, session.env, proxy=route, quiet=quiet))


@click.command("proxy-command")
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--auto", is_flag=True, help="Connect directly to the dev server if it is reachable.")
@click.option("--api-url", metavar="URL", help="API address; overrides all settings.")
def proxy_command(job_id: str, auto: bool, api_url: str | None) -> None:
    """Connect standard input and output to a dev server's ssh server, through the API's HTTPS port.

    \b
    ssh -o ProxyCommand='gpu-dev proxy-command 3f2a9c1e' dev@gpu-dev
    """
    from gpudev.cli.proxy_tunnel import run_tunnel

    if not is_id(job_id):
        job_id = choose_job(CommandSession(api_url), job_id, may_ask=False).value.reservation_id
    run_tunnel(job_id, auto=auto, api_url=api_url)


def _run_until_interrupted(line: list[str]) -> int:
    """ssh's exit code; 0 after Ctrl-C, which is the normal end here, while ssh itself would exit with 255."""
    import subprocess  # slow to load

    with signals_as_interrupt():
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL)
        with process:
            try:
                return process.wait()
            except KeyboardInterrupt:
                process.terminate()
                return 0


def _make_folder(session: CommandSession, job: JobView, path: str, route: openssh.ProxyCommand) -> None:
    """scp does not create folders, and its error is unclear."""
    import subprocess  # slow to load

    make = ("mkdir", "-p", "--", path.removeprefix("~/") or ".")
    line = openssh.command_line(openssh.find_program(), job, make, session.env, tty=False, proxy=route, more=["-T"])
    exit_code = subprocess.run(line, stdin=subprocess.DEVNULL, check=False).returncode
    if exit_code != 0:
        click.get_current_context().exit(exit_code)


def _split_id_and_ports(session: CommandSession, arguments: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The first argument is a reservation if it cannot be a port, or if others follow and a live id begins with it."""
    first, *rest = arguments
    if ":" in first or (first.isdigit() and len(first) <= 5):
        if rest and is_id(first) and _begins_a_live_id(session, first):
            return first, tuple(rest)
        return None, arguments
    job_id = ID.convert(first, None, None)
    if not rest:
        raise usage_error(f"give a port of {job_id} to forward", f"gpu-dev port-forward {job_id} 8888")
    return job_id, tuple(rest)


def _begins_a_live_id(session: CommandSession, digits: str) -> bool:
    return any(job.reservation_id.startswith(digits) for job in list_live_jobs(session))


def _split_path(text: str) -> tuple[str | None, str]:
    """As scp parses it: a colon before the first slash marks a remote path. None: local; an empty id: the only
    reservation."""
    name, colon, path = text.partition(":")
    if not colon or "/" in name:
        return None, text if not text.startswith("-") else f"./{text}"
    return (ID.convert(name, None, None) if name else ""), path or "."


def _colon_hint(paths: tuple[str, ...]) -> str:
    """For paths that are all local: a reservation without its colon looks like a file."""
    missing = next((path for path in reversed(paths) if ":" not in path and not os.path.lexists(path)), "")
    return (
        f"A remote path has a colon; did you mean {missing}: ?" if missing else "A remote path has a colon, e.g. :data"
    )


def _remote_folder(path: str) -> str:
    """Relative to the remote home folder."""
    return posixpath.normpath(posixpath.join(_HOME, path.removeprefix("~/")))


def _cd_hint(folder: str) -> str:
    return f"`gpu-dev connect -- {shlex.quote(f'cd {shlex.quote(folder)} && exec $SHELL')}` opens a shell there"


def _open_editor(session: CommandSession, job: JobView, editor: str, folder: str) -> None:
    """Editors find the dev server by its name in ssh's configuration."""
    import subprocess  # slow to load

    from gpudev.cli.commands.sessions import ssh_config

    name = ssh_config.refresh_config(session, formatting.utc_now()).names.get(job.reservation_id)
    if name is None:
        raise CliError(ExitCode.REJECTED, "this reservation belongs to another user, so it has no ssh host name")
    scheme, title = _EDITORS[editor]
    program = shutil.which(editor)
    if program is None:
        link = f"{scheme}://vscode-remote/ssh-remote+{quote(name)}{quote(folder)}"
        output.write_note(f"`{editor}` is not in PATH. Open this link, or choose the host {name} in {title}:")
        output.write_line(link)
        return
    done = subprocess.run([program, "--remote", f"ssh-remote+{name}", folder], check=False)
    if done.returncode != 0:
        raise CliError(ExitCode.LOCAL, f"{title} did not open ({editor} exited with {done.returncode})")
