"""`expire`: what a stopped processor would have ended, and stale requests."""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import click

from gpudev.bootstrap.service_runtime import configure_logging
from gpudev.ports.clock import SystemClock
from gpudev.ports.leases import ReconcilePass
from gpudev.processor.expiry_report import ExpiryReport
from gpudev.server_cli.command_runtime import load_server_settings
from gpudev.server_cli.reconcile import PassOptions, pass_options, run_locked, run_with_deadline
from gpudev.workflows.reservations.stale_requests import StaleRequestReport, StaleRequests


@click.command()
@pass_options
def expire(**options: Any) -> None:
    """End what is over, warn, clear away, and look after neglected requests, once. Starts nobody.

    While a processor is at work, it does all this itself; only requests that it neglects are looked after.
    """
    manner = PassOptions(**options)
    done = run_with_deadline(manner.deadline, lambda: _run_expire(manner))
    if isinstance(done, str):
        click.echo(json.dumps({"acted": False, "skipped": done}) if manner.as_json else f"expire: {done}")
        return
    if manner.as_json:
        parts = asdict(done.expiry) if done.expiry else {}
        click.echo(json.dumps({"acted": done.expiry is not None, **parts, **asdict(done.stale_requests)}))
    else:
        _print_result(done, manner)
    if done.expiry is not None and not done.expiry.succeeded:
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class _ExpireResult:
    expiry: ExpiryReport | None
    """None: a processor is at work."""
    stale_requests: StaleRequestReport


async def _run_expire(manner: PassOptions) -> _ExpireResult | str:
    from gpudev.bootstrap.processor import open_expiry_backstop

    settings = load_server_settings()
    configure_logging(settings)
    async with open_expiry_backstop(settings) as running:
        stores = running.stores
        neglected = StaleRequests(stores.reservations, stores.planning_records, SystemClock(), settings.reconciling)

        async def work() -> _ExpireResult:
            expired = await running.processor.expire(dry_run=manner.dry_run)
            return _ExpireResult(expired, await neglected.run(dry_run=manner.dry_run))

        return await run_locked(stores.reconcile_locks, ReconcilePass.EXPIRY, manner, work)


def _print_result(done: _ExpireResult, manner: PassOptions) -> None:
    if done.expiry is None:
        click.echo("a processor is at work and ends what is over all the time")
    else:
        mode = " (dry run: nothing was changed)" if manner.dry_run else ""
        counts = f"{len(done.expiry.changes)} changes, {len(done.expiry.torn_down)} taken down"
        click.echo(f"expire: {counts}, {len(done.expiry.removed)} orphans removed{mode}")
        for line in done.expiry.changes:
            click.echo(f"  {line}")
        for name in done.expiry.orphans:
            click.echo(f"  without a reservation, and removed if that lasts: {name}")
        for error in done.expiry.errors:
            click.echo(f"  error: {error}", err=True)
        for name in done.expiry.unfinished:
            click.echo(f"  error: not everything of {name} is gone yet", err=True)
    for name in done.stale_requests.sent_again:
        click.echo(f"  {name}: nobody looked at it; sent again")
    for name in done.stale_requests.cancelled:
        click.echo(f"  {name}: nobody looked at it, not even when it was sent again; cancelled")
