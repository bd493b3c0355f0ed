"""`gpu-dev proxy-command`: what ssh starts to reach a dev server."""

import click

from gpudev.cli.exits import CliError, Exit
from gpudev.cli.options import ID
from gpudev.cli.session import Session

_ENDED, _ACCESS_ENDED = 4001, 4003
_DONE = (1000, 1005)
_EXITS = {_ENDED: Exit.RESERVATION_ENDED, _ACCESS_ENDED: Exit.AUTH}


@click.command("proxy-command")
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--auto", is_flag=True, help="Go straight to the dev server where it can be reached.")
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
def proxy_command(job_id: str, auto: bool, api_url: str | None) -> None:
    """Connect standard input and output with a dev server's ssh server, through the API's HTTPS port.

    \b
    ssh -o ProxyCommand='gpu-dev proxy-command 3f2a9c1e' dev@gpu-dev
    """
    from gpudev.cli import piping, reaching

    session = Session(api_url)
    if auto and (straight := reaching.straight_to(session.api.get(job_id).value)) is not None:
        piping.Pipe(straight, piping.Plain()).run()
        return
    line, first = session.api.open_tunnel(job_id)
    closed = piping.Pipe(line, piping.Framed()).run(first)
    piping.say_goodbye(line)
    if closed is not None and closed.code not in _DONE:
        code = _EXITS.get(closed.code, Exit.UNREACHABLE)
        raise CliError(code, f"the connection was ended: {closed.reason or f'code {closed.code}'}")
