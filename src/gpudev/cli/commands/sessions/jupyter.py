"""`gpu-dev jupyter`."""

import subprocess
import sys
import time

import click

from gpudev.cli import output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.sessions.connection_setup import choose_route, get_ready_job
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.cli.job_selection import choose_job
from gpudev.cli.options import ID, api_options
from gpudev.sdk.http import session_endpoints
from gpudev.sdk.http.endpoints import ApiReply
from gpudev.sdk.remote import openssh, remote_commands
from gpudev.wire.reservations import JobView
from gpudev.wire.sessions import JupyterView

_PATIENCE_SECONDS = 120.0
_SSH_FAILED = 255


@click.group()
def jupyter() -> None:
    """Run Jupyter Lab on a dev server and open it in a local browser.

    \b
    gpu-dev jupyter enable
    gpu-dev jupyter open 3f2a9c1e
    """


@jupyter.command("enable")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--install", is_flag=True, help="If there is no Jupyter Lab on the dev server, install it there first.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@click.option("--browser", is_flag=True, help="Open it in a local browser.")
@api_options
def enable(
    job_id: str | None, *, install: bool, no_wait: bool, browser: bool, as_json: bool, api_url: str | None
) -> None:
    """Start Jupyter Lab, wait until it is ready, and print a link to it.

    ID is an id, a prefix of one, or a name; it may be omitted if you have only one reservation. --install installs
    Jupyter Lab in an environment of its own, in the home of the dev server.
    """
    session = CommandSession(api_url)
    job = get_ready_job(session, job_id, may_ask=not as_json)
    if install:
        _install(session, job)
    reply = session.api.fetch(session_endpoints.enable_jupyter(job.reservation_id))
    if not no_wait:
        if not as_json:
            output.write_note("Jupyter is starting …")
        reply = _wait_until_ready(session, job.reservation_id, reply)
    if as_json:
        output.write_json(reply.raw)
    elif no_wait:
        output.write_line("Jupyter is starting; `gpu-dev jupyter open` prints the link.")
    else:
        _write_link(session, job.reservation_id, browser=browser)


@jupyter.command("open")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--browser", is_flag=True, help="Open it in a local browser.")
@api_options
def open_lab(job_id: str | None, *, browser: bool, as_json: bool, api_url: str | None) -> None:
    """Print a link that opens Jupyter Lab in a browser. It works once."""
    session = CommandSession(api_url)
    reservation_id = choose_job(session, job_id, may_ask=not as_json).value.reservation_id
    if as_json:
        output.write_json(session.api.fetch(session_endpoints.create_jupyter_link(reservation_id)).raw)
        return
    _write_link(session, reservation_id, browser=browser)


@jupyter.command("disable")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@api_options
def disable(job_id: str | None, as_json: bool, api_url: str | None) -> None:
    """Stop Jupyter Lab and its kernels."""
    session = CommandSession(api_url)
    reply = session.api.fetch(
        session_endpoints.disable_jupyter(choose_job(session, job_id, may_ask=not as_json).value.reservation_id)
    )
    if as_json:
        output.write_json(reply.raw)
        return
    output.write_line("Jupyter is off.")


@jupyter.command("status")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@api_options
def status(job_id: str | None, as_json: bool, api_url: str | None) -> None:
    """Show the state of Jupyter Lab: off, starting, ready or failed."""
    session = CommandSession(api_url)
    reply = session.api.fetch(
        session_endpoints.get_jupyter(choose_job(session, job_id, may_ask=not as_json).value.reservation_id)
    )
    if as_json:
        output.write_json(reply.raw)
        return
    why = reply.value.reason or reply.value.trouble
    state = "Jupyter has failed" if reply.value.state == "failed" else f"Jupyter is {reply.value.state}"
    output.write_line(output.indent_below_label(state, output.clean(f": {why}" if why else "."), 4))


def _install(session: CommandSession, job: JobView) -> None:
    route = choose_route(session, job, direct=False, proxy=False)
    remote, more = remote_commands.install_jupyter_command(), ["-T", "-o", "BatchMode=yes"]
    program = openssh.find_program()
    line = openssh.command_line(program, job, remote, session.env, tty=False, proxy=route, more=more)
    # Its progress is for people; standard output has the link, or the JSON.
    code = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode
    if code == _SSH_FAILED:
        raise CliError(ExitCode.UNREACHABLE, "ssh could not connect to the dev server")
    if code != 0:
        raise CliError(ExitCode.REJECTED, f"JupyterLab could not be installed there (exit code {code}; see above)")


def _wait_until_ready(
    session: CommandSession, reservation_id: str, reply: ApiReply[JupyterView]
) -> ApiReply[JupyterView]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    api = session.api
    reply = api.run(session_endpoints.wait_for_jupyter(api.client, reservation_id, reply, deadline=deadline))
    if reply.value.state == "starting":
        why = f" ({reply.value.trouble})" if reply.value.trouble else ""
        raise CliError(ExitCode.UNREACHABLE, f"Jupyter has not started yet{why}", "See `gpu-dev jupyter status`")
    if reply.value.state != "ready":
        raise CliError(ExitCode.REJECTED, f"Jupyter is not running: {reply.value.reason or 'it was disabled'}")
    return reply


def _write_link(session: CommandSession, reservation_id: str, *, browser: bool) -> None:
    link = session.api.fetch(session_endpoints.create_jupyter_link(reservation_id)).value
    url = session_endpoints.absolute_link(session.address.url, link)
    if browser:
        import webbrowser

        if webbrowser.open(url):
            output.write_note("Opening it in your browser.")
            return
    output.write_note(
        "Open this link within two minutes. It works once and is personal; `gpu-dev jupyter open` prints another:"
    )
    output.write_line(url)
