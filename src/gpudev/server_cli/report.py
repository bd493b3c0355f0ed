"""`report`: estimate quality and orphans, for operators."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.reconcilers import open_reconcilers
from gpudev.planning.disks.reconcile_disks import OrphanedStorage
from gpudev.ports.clock import SystemClock
from gpudev.server_cli.command_runtime import load_server_settings, run_with_stores
from gpudev.wire.queue import EtaErrors, EtaReportView, EtaStatistics
from gpudev.workflows.cluster.eta_report import EtaReports


@click.group()
def report() -> None:
    """Reports for operators."""


@report.command()
@click.option("--days", type=click.FloatRange(0.01, 3650), default=7.0, show_default=True, help="Number of days back.")
@click.option("--type", "gpu_type", help="Only this GPU type.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def eta(days: float, gpu_type: str | None, as_json: bool) -> None:
    """Accuracy of the estimates: their errors, and how often and why `latest` was broken."""

    async def act(stores: Stores) -> EtaReportView:
        return await EtaReports(stores.estimates, SystemClock()).report_eta(days, gpu_type, name_breaches=True)

    found = run_with_stores(act)
    if as_json:
        click.echo(json.dumps(asdict(found), default=_iso))
        return
    click.echo(f"since {found.since:%Y-%m-%d %H:%M} UTC; errors in minutes, median / p90")
    for part in found.statistics:
        click.echo(_format_statistics(part))
    for breach in found.breaches:
        when = f"started {breach.started_at:%Y-%m-%d %H:%M:%S}" if breach.started_at else "still queued"
        guaranteed = f"guaranteed by {breach.latest:%Y-%m-%d %H:%M:%S}"
        click.echo(f"  {breach.reservation_id[:8]}  {breach.gpu_type:<12}  {guaranteed}, {when}: {breach.cause}")


@report.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def orphans(as_json: bool) -> None:
    """List orphaned volumes and snapshots with size, age and monthly cost. Removes nothing."""
    settings = load_server_settings()

    async def load() -> list[OrphanedStorage]:
        async with open_reconcilers(settings) as parts:
            return await parts.disks().find_orphans(settings.reconciling)

    found = asyncio.run(load())
    cost = sum(one.monthly_cost for one in found)
    if as_json:
        rows = [asdict(one) | {"age": one.age.total_seconds()} for one in found]
        click.echo(json.dumps({"orphans": rows, "monthly_cost": cost}))
        return
    for one in found:
        age = f"{one.age.days} days"
        price = f"{one.monthly_cost:.2f}"
        click.echo(f"{one.kind:<8}  {one.id:<22}  {one.size_gb:>6} GB  {age:>9}  {price:>9}/month  {one.reason}")
    click.echo(f"{len(found)} orphans, {sum(one.size_gb for one in found)} GB, {cost:.2f} per month")


def _format_statistics(part: EtaStatistics) -> str:
    name = part.gpu_type or "all types"
    held = "-" if part.in_interval is None else f"{100 * part.in_interval:.0f} %"
    return (
        f"{name:<12}  {part.started:>6} started  expected {_errors(part.expected_error)}  "
        f"latest {_errors(part.latest_error)}  in interval {held} (target {100 * part.confidence:.0f} %)  "
        f"latest broken {part.latest_broken}"
    )


def _errors(errors: EtaErrors) -> str:
    if errors.median_minutes is None or errors.p90_minutes is None:
        return "- / -"
    return f"{errors.median_minutes:.1f} / {errors.p90_minutes:.1f}"


def _iso(value: Any) -> str:
    return str(value.isoformat())
