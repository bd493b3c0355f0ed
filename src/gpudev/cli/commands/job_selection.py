"""Selects a reservation if no id is given."""

from gpudev.cli import formatting
from gpudev.cli.command_session import CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.domain.reservations.lifecycle import LIVE, Status
from gpudev.sdk.http.endpoints import ApiReply, get_job, list_jobs
from gpudev.wire.reservations import JobView


def choose_job(session: CommandSession, job_id: str | None) -> ApiReply[JobView]:
    """The named reservation, or the only active one, or the only live one."""
    return session.api.fetch(get_job(job_id if job_id is not None else _choose_only_job(session).reservation_id))


def _choose_only_job(session: CommandSession) -> JobView:
    jobs = session.api.fetch(list_jobs({"status": sorted(LIVE), "limit": 200})).value.jobs
    active = [job for job in jobs if job.status == Status.ACTIVE]
    candidates = active or jobs
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise CliError(ExitCode.NOT_FOUND, "you have no live reservation", "Create one with `gpu-dev reserve`")
    shown = ", ".join(_describe_job(job) for job in candidates[:5]) + (" …" if len(candidates) > 5 else "")
    raise usage_error(f"you have {len(candidates)} reservations, so an id is required", f"Choose from {shown}")


def _describe_job(job: JobView) -> str:
    name = f", {job.name}" if job.name else ""
    return f"{formatting.short_id(job.reservation_id)} ({formatting.hardware(job)}{name})"
