"""What the commands about nodes have in common: the reason that is given, and who is told to be there."""

from collections.abc import Sequence

import click

from gpudev.domain.ids import short_id
from gpudev.domain.reservations.reservation import Reservation

REASON_OPTION = click.option("--reason", default="", help="One line for everybody who waits.")


def print_reservations(there: Sequence[Reservation]) -> None:
    for one in there:
        end = one.planned_end()
        until = f"until {end:%Y-%m-%d %H:%M} UTC" if end and one.status.holds_capacity else "being cleared away"
        click.echo(f"  {short_id(one.reservation_id)}  {one.username:<24}  {one.status.value:<9}  {until}")


def audit_target(name: str, reason: str) -> str:
    return f"{name} ({reason})" if reason else name
