"""A disk that is named and not there yet: whoever reserves with it makes it, and is asked or told before."""

import click

from gpudev.cli import output
from gpudev.cli.command_session import CommandSession
from gpudev.domain.disks.names import NO_DISK
from gpudev.sdk.errors import NotFound


def confirm_new_disk(session: CommandSession, name: str | None, *, may_ask: bool, quiet: bool) -> bool:
    """False: they were asked, and want none."""
    if name is None or name == NO_DISK:
        return True
    missing = _find_missing_text(session, name)
    if missing is None:
        return True
    if may_ask:
        return click.confirm(f"{output.clean(missing)}. Make a new, empty one?", default=True)
    if not quiet:
        output.write_line(output.clean(f"{missing}. A new, empty one is made."))
    return True


def _find_missing_text(session: CommandSession, name: str) -> str | None:
    """In the API's own words, which also tell of one that was deleted. None: it is there."""
    from gpudev.sdk.http import disk_endpoints

    try:
        found = session.api.fetch(disk_endpoints.get_disk(name)).value
    except NotFound as error:
        return error.message[:1].upper() + error.message[1:]
    if found.state != "failed":
        return None
    why = found.operation.error if found.operation is not None else None
    return f"Disk {name!r} was asked for and could not be made{f' ({why})' if why else ''}"
