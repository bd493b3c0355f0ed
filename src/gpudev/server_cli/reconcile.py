"""`reconcile`: corrects the records from the cluster and the cloud, once."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import click

from gpudev.bootstrap.reconcilers import OneShotReconcilers, open_reconcilers
from gpudev.bootstrap.service_runtime import configure_logging, tune_garbage_collector
from gpudev.domain.errors import GpuDevError
from gpudev.ports.leases import ReconcileLocks, ReconcilePass
from gpudev.server_cli.command_runtime import load_server_settings
from gpudev.workflows.cluster.reconcile_availability import AvailabilityReport
from gpudev.workflows.disks.reconcile_disks import DiskReconcileReport

_F = TypeVar("_F", bound=Callable[..., Any])
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class PassOptions:
    """Options of a pass."""

    dry_run: bool
    as_json: bool
    deadline: float
    scheduled: bool


def pass_options(function: _F) -> _F:
    for option in (
        click.option("--scheduled", is_flag=True, help="If another process runs the pass, skip it and exit with 0."),
        click.option(
            "--deadline",
            type=click.FloatRange(min=0, min_open=True),
            default=600.0,
            show_default=True,
            help="Maximum seconds for the pass.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--dry-run", is_flag=True, help="Print the changes without making them."),
    ):
        function = option(function)
    return function


@click.group()
def reconcile() -> None:
    """Correct the records from the cluster and the cloud. Never deletes anything."""


@reconcile.command()
@pass_options
def availability(**options: Any) -> None:
    """Phase 1: availability of each GPU type, from the cluster's nodes and pods and the cloud's node groups."""
    _reconcile([ReconcilePass.AVAILABILITY], PassOptions(**options))


@reconcile.command()
@pass_options
def disks(**options: Any) -> None:
    """Phase 2: disk records, from the cloud's volumes and snapshots."""
    _reconcile([ReconcilePass.DISKS], PassOptions(**options))


@reconcile.command("all")
@pass_options
def everything(**options: Any) -> None:
    """Phase 1, then phase 2 if there is a cloud. A failed phase does not prevent the other."""
    _reconcile([ReconcilePass.AVAILABILITY, ReconcilePass.DISKS], PassOptions(**options))


@dataclass(slots=True)
class ReconcileOutcome:
    """The report of each pass; a text is the reason why it was skipped, None: not requested."""

    availability: AvailabilityReport | str | None = None
    disks: DiskReconcileReport | str | None = None
    failures: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        reports = (self.availability, self.disks)
        return not self.failures and all(
            one.succeeded for one in reports if one is not None and not isinstance(one, str)
        )


def _reconcile(passes: Sequence[ReconcilePass], run_options: PassOptions) -> None:
    outcome = run_with_deadline(run_options.deadline, lambda: _run_passes(passes, run_options))
    if run_options.as_json:
        click.echo(json.dumps(_as_json(outcome), default=_format_value))
    else:
        _show(outcome, run_options)
    if not outcome.succeeded:
        sys.exit(1)


class PassFailed(click.ClickException):
    def show(self, file: Any = None) -> None:
        show_error(self.format_message())


def show_error(message: str, indent: str = "") -> None:
    """Operators search the logs of a pass for this word."""
    click.echo(f"{indent}ERROR: {message}", err=True)


def run_with_deadline(deadline: float, work: Callable[[], Awaitable[_R]]) -> _R:
    async def run() -> _R:
        async with asyncio.timeout(deadline):
            return await work()

    try:
        return asyncio.run(run())
    except TimeoutError:
        raise PassFailed(f"not finished within {deadline:g} s; completed changes are kept") from None
    except (GpuDevError, ValueError) as error:
        if os.environ.get("GPU_DEV_DEBUG"):
            raise
        raise PassFailed(str(error)) from error
    except Exception as error:
        show_error(f"unexpected {type(error).__name__}")
        raise


async def _run_passes(passes: Sequence[ReconcilePass], run_options: PassOptions) -> ReconcileOutcome:
    settings = load_server_settings()
    configure_logging(settings)
    tune_garbage_collector()
    outcome = ReconcileOutcome()
    async with open_reconcilers(settings) as parts:
        if ReconcilePass.AVAILABILITY in passes:
            outcome.availability = await run_locked(
                parts.stores.reconcile_locks,
                ReconcilePass.AVAILABILITY,
                run_options,
                lambda: _availability(parts, run_options),
            )
        if ReconcilePass.DISKS in passes and parts.cloud is None and len(passes) > 1:
            outcome.disks = "no cloud is configured, so there are no volumes to compare disks with"
        elif ReconcilePass.DISKS in passes:
            outcome.disks = await run_locked(
                parts.stores.reconcile_locks,
                ReconcilePass.DISKS,
                run_options,
                lambda: parts.disks().run(dry_run=run_options.dry_run),
            )
    return outcome


async def _availability(parts: OneShotReconcilers, run_options: PassOptions) -> AvailabilityReport:
    try:
        async with parts.availability() as reconciling:
            return await reconciling.run(dry_run=run_options.dry_run)
    except GpuDevError as error:
        return AvailabilityReport(errors=[f"nothing was changed: {error}"])


async def run_locked(
    locks: ReconcileLocks, reconcile_pass: ReconcilePass, run_options: PassOptions, work: Callable[[], Awaitable[_R]]
) -> _R | str:
    """Under the pass's lock, which a dry run does not need. A text is the reason why it was skipped."""
    async with AsyncExitStack() as stack:
        if not run_options.dry_run:
            busy = await stack.enter_async_context(locks.hold(reconcile_pass, wait=not run_options.scheduled))
            if busy is not None:
                return f"already running ({busy})"
        return await work()


# --- Output ------------------------------------------------------------------------------------------------------


def _show(outcome: ReconcileOutcome, run_options: PassOptions) -> None:
    mode = " (dry run: nothing was changed)" if run_options.dry_run else ""
    match outcome.availability:
        case str(reason):
            click.echo(f"availability: {reason}")
        case AvailabilityReport() as report:
            _show_availability(report, mode)
    match outcome.disks:
        case str(reason):
            click.echo(f"disks: {reason}")
        case DiskReconcileReport() as found:
            _show_disks(found, mode)


def _show_availability(report: AvailabilityReport, mode: str) -> None:
    changed = sum(1 for changes in report.updated.values() if changes)
    click.echo(
        f"availability: {len(report.updated)} types updated ({changed} with changes), {len(report.kept)} kept, "
        f"{len(report.errors)} errors{mode}"
    )
    for gpu_type, changes in report.updated.items():
        if changes:
            click.echo(f"  {gpu_type}: {_changes(changes)}")
    if report.kept:
        click.echo(f"  kept, because newer facts are recorded: {', '.join(report.kept)}")
    _show_lines("WARNING", report.warnings)
    _show_lines("ERROR", report.errors)


def _show_disks(report: DiskReconcileReport, mode: str) -> None:
    numbers = " ".join(f"{name}={count}" for name, count in asdict(report.statistics).items())
    click.echo(f"disks: {numbers}{mode}")
    for change in report.changes:
        click.echo(f"  {change.kind} {change.username}/{change.disk_name}: {_changes(change.changes)}")
    _show_lines("without volume", report.without_volume)
    _show_lines("unchanged", report.left_alone)
    for duplicate in report.duplicates:
        linked = f"besides {duplicate.linked}" if duplicate.linked else "and the recorded volume is missing"
        name = f"{duplicate.username}/{duplicate.disk_name}"
        click.echo(f"  WARNING: more volumes for {name}: {', '.join(duplicate.others)}, {linked}", err=True)
    _show_lines("WARNING", [f"volume {one.volume_id} skipped: {one.reason}" for one in report.skipped])
    _show_lines("ERROR", report.errors)


def _show_lines(label: str, lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"  {label}: {line}", err=label in ("WARNING", "ERROR"))


def _changes(changes: Any) -> str:
    return ", ".join(f"{column} {_format_value(old)} → {_format_value(new)}" for column, (old, new) in changes.items())


def _as_json(outcome: ReconcileOutcome) -> dict[str, Any]:
    result: dict[str, Any] = {"succeeded": outcome.succeeded}
    for name in ("availability", "disks"):
        part = getattr(outcome, name)
        if isinstance(part, str):
            result[name] = {"skipped": part}
        elif part is not None:
            result[name] = asdict(part)
    return result


def _format_value(value: Any) -> str:
    return "-" if value is None else value.isoformat() if hasattr(value, "isoformat") else str(value)
