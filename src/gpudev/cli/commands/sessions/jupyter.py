"""`gpu-dev jupyter`: Jupyter Lab in a dev server, in a browser here."""

import time

import click

from gpudev.cli import output
from gpudev.cli.api_calls import Reply
from gpudev.cli.command_session import Session
from gpudev.cli.commands.reservations.job_selection import find_job
from gpudev.cli.commands.sessions.connection_setup import find_ready
from gpudev.cli.exit_codes import CliError, Exit
from gpudev.cli.options import ID, api_options
from gpudev.sdk.http import addon_endpoints
from gpudev.wire.sessions import JupyterView

_PATIENCE_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.25


@click.group()
def jupyter() -> None:
    """Jupyter Lab in a dev server: it starts while that runs, and opens in a browser here.

    \b
    gpu-dev jupyter enable
    gpu-dev jupyter open 3f2a9c1e
    """


@jupyter.command("enable")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--no-wait", is_flag=True, help="Do not wait until it answers.")
@click.option("--browser", is_flag=True, help="Open it in a browser here.")
@api_options
def enable(job_id: str | None, *, no_wait: bool, browser: bool, as_json: bool, api_url: str | None) -> None:
    """Start Jupyter Lab, wait until it answers, and print the link that opens it.

    ID may be shortened, or left out when there is only one.
    """
    session = Session(api_url)
    job = find_ready(session, job_id)
    reply = session.api.ask(addon_endpoints.enable_jupyter(job.reservation_id))
    if not no_wait:
        if not as_json:
            output.tell("Jupyter is starting …")
        reply = _ready(session, job.reservation_id, reply)
    if as_json:
        output.say_json(reply.raw)
    elif no_wait:
        output.say("Jupyter is starting; `gpu-dev jupyter open` gives the link.")
    else:
        _tell_link(session, job.reservation_id, browser=browser)


@jupyter.command("open")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--browser", is_flag=True, help="Open it in a browser here.")
@api_options
def open_it(job_id: str | None, *, browser: bool, as_json: bool, api_url: str | None) -> None:
    """Print a link that opens Jupyter Lab in a browser, once."""
    session = Session(api_url)
    chosen = find_job(session, job_id).value.reservation_id
    if as_json:
        output.say_json(session.api.ask(addon_endpoints.link_to_jupyter(chosen)).raw)
        return
    _tell_link(session, chosen, browser=browser)


@jupyter.command("disable")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@api_options
def disable(job_id: str | None, as_json: bool, api_url: str | None) -> None:
    """Stop Jupyter Lab, and its kernels with it."""
    session = Session(api_url)
    reply = session.api.ask(addon_endpoints.disable_jupyter(find_job(session, job_id).value.reservation_id))
    if as_json:
        output.say_json(reply.raw)
        return
    output.say("Jupyter is off.")


@jupyter.command("status")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@api_options
def status(job_id: str | None, as_json: bool, api_url: str | None) -> None:
    """Show how Jupyter Lab is: off, starting, ready or failed."""
    session = Session(api_url)
    reply = session.api.ask(addon_endpoints.get_jupyter(find_job(session, job_id).value.reservation_id))
    if as_json:
        output.say_json(reply.raw)
        return
    why = reply.value.reason or reply.value.trouble
    state = "Jupyter has failed" if reply.value.state == "failed" else f"Jupyter is {reply.value.state}"
    output.say(output.hang(state, output.clean(f": {why}" if why else "."), 4))


def _ready(session: Session, reservation_id: str, reply: Reply[JupyterView]) -> Reply[JupyterView]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while reply.value.state == "starting":
        if time.monotonic() > deadline:
            why = f" ({reply.value.trouble})" if reply.value.trouble else ""
            raise CliError(Exit.UNREACHABLE, f"Jupyter has not started yet{why}", "See `gpu-dev jupyter status`")
        time.sleep(_LOOK_AGAIN_SECONDS)
        reply = session.api.ask(addon_endpoints.get_jupyter(reservation_id))
    if reply.value.state != "ready":
        raise CliError(Exit.REFUSED, f"Jupyter does not run: {reply.value.reason or 'it was disabled'}")
    return reply


def _tell_link(session: Session, reservation_id: str, *, browser: bool) -> None:
    link = session.api.ask(addon_endpoints.link_to_jupyter(reservation_id)).value
    url = link.url if "://" in link.url else f"{session.address.url.rstrip('/')}{link.url}"
    if browser:
        import webbrowser

        if webbrowser.open(url):
            output.tell("It opens in your browser.")
            return
    output.tell(
        "Open this link within two minutes; it is good once, and yours alone (`gpu-dev jupyter open` gives more):"
    )
    output.say(url)
