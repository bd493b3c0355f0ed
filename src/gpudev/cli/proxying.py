"""What `gpu-dev proxy-command` does. ssh starts it for every connection, so its usual form is understood right here,
without loading the argument parser."""

import re
import socket
from collections.abc import Sequence

from gpudev.cli import output, proxy_tunnel, stdio_pipe
from gpudev.cli.exit_codes import CliError, ExitCode

_RESERVATION_ENDED, _ACCESS_ENDED = 4001, 4003
_NORMAL_CLOSE_CODES = (1000, 1005)
_EXIT_CODES = {_RESERVATION_ENDED: ExitCode.RESERVATION_ENDED, _ACCESS_ENDED: ExitCode.AUTH}


def run_fast_path(arguments: Sequence[str]) -> int | None:
    """The exit code; None: this is for the argument parser, which has words for whatever is unusual about it."""
    found = re.fullmatch(
        r"(?P<auto>--auto\0)?(?:--api-url\0(?P<url>[^\0]+)\0)?(?P<id>[0-9a-f-]{36})", "\0".join(arguments)
    )
    if found is None:
        return None
    output.configure_streams()
    try:
        run_tunnel(found["id"], auto=found["auto"] is not None, api_url=found["url"])
    except BaseException as error:  # noqa: BLE001 - the outermost frame: everything becomes an exit code
        from gpudev.cli.app import report_error

        return report_error(error, json_output=False)
    return ExitCode.OK


def run_tunnel(job_id: str, *, auto: bool, api_url: str | None) -> None:
    """Standard input and output to the dev server's ssh server, until either has ended."""
    line, first = proxy_tunnel.open_fast_connection(job_id, api_url, auto=auto) or _open_with_full_client(
        job_id, auto, api_url
    )
    if first is None:
        stdio_pipe.StdioPipe(line, stdio_pipe.PlainFraming()).run()
        return
    closed = stdio_pipe.StdioPipe(line, stdio_pipe.WebSocketFraming()).run(first)
    stdio_pipe.close_websocket(line)
    if closed is not None and closed.code not in _NORMAL_CLOSE_CODES:
        code = _EXIT_CODES.get(closed.code, ExitCode.UNREACHABLE)
        raise CliError(code, f"the connection was ended: {closed.reason or f'code {closed.code}'}")


def _open_with_full_client(job_id: str, auto: bool, api_url: str | None) -> "tuple[socket.socket, bytes | None]":
    """By the whole client. A WebSocket, and what came through it already; None in its place: straight to the dev
    server."""
    from gpudev.cli.command_session import CommandSession

    session = CommandSession(api_url)
    if auto:
        from gpudev.sdk.remote import ssh_route

        straight = ssh_route.connect_directly(session.api.get_job(job_id).value)
        if straight is not None:
            return straight, None
    return session.api.open_tunnel(job_id)
