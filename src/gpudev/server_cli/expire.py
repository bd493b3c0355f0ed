"""`expire`: expiry without a running processor, and stale requests."""

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
from gpudev.server_cli.reconcile import PassOptions, pass_options, run_locked, run_with_deadline, show_error
from gpudev.workflows.reservations.stale_requests import StaleRequestReport, StaleRequests


@click.command()
@pass_options
def expire(**options: Any) -> None:
    """Send warnings, expire reservations, remove their dev servers and handle stale requests, once. Starts nothing.

    While a processor runs, it does this itself, and only stale requests are handled.
    """
    run_options = PassOptions(**options)
    done = run_with_deadline(run_options.deadline, lambda: _run_expire(run_options))
    if isinstance(done, str):
        click.echo(json.dumps({"acted": False, "skipped": done}) if run_options.as_json else f"expire: {done}")
        return
    if run_options.as_json:
        parts = asdict(done.expiry) if done.expiry else {}
        click.echo(json.dumps({"acted": done.expiry is not None, **parts, **asdict(done.stale_requests)}))
    else:
        _print_result(done, run_options)
    if done.expiry is not None and not done.expiry.succeeded:
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class _ExpireResult:
    expiry: ExpiryReport | None
    """None: a processor is running."""
    stale_requests: StaleRequestReport


async def _run_expire(run_options: PassOptions) -> _ExpireResult | str:
    from gpudev.bootstrap.processor import open_expiry_backstop

    settings = load_server_settings()
    configure_logging(settings)
    async with open_expiry_backstop(settings) as running:
        stores = running.stores
        stale_requests = StaleRequests(stores.reservations, stores.planning_records, SystemClock())

        async def work() -> _ExpireResult:
            expired = await running.processor.expire(dry_run=run_options.dry_run)
            return _ExpireResult(expired, await stale_requests.run(dry_run=run_options.dry_run))

        return await run_locked(stores.reconcile_locks, ReconcilePass.EXPIRY, run_options, work)


def _print_result(done: _ExpireResult, run_options: PassOptions) -> None:
    if done.expiry is None:
        click.echo("a processor is running and handles expiry itself")
    else:
        mode = " (dry run: nothing was changed)" if run_options.dry_run else ""
        counts = f"{len(done.expiry.changes)} changes, {len(done.expiry.torn_down)} torn down"
        click.echo(f"expire: {counts}, {len(done.expiry.removed)} orphans removed{mode}")
        for line in done.expiry.changes:
            click.echo(f"  {line}")
        for name in done.expiry.orphans:
            click.echo(f"  orphan, removed if it stays one: {name}")
        for error in done.expiry.errors:
            show_error(error, "  ")
        for name in done.expiry.unfinished:
            show_error(f"{name} is not completely removed yet", "  ")
    for name in done.stale_requests.sent_again:
        click.echo(f"  {name}: stale; sent again")
    for name in done.stale_requests.cancelled:
        click.echo(f"  {name}: still stale after it was sent again; cancelled")
