"""Which reservation a command means: an id prefix, a name, an ssh host name, or the only one.

Names are compared here and never sent; the API knows ids only.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gpudev.cli import formatting, output, prompts
from gpudev.cli.command_session import CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.cli.options import is_id
from gpudev.domain.reservations.lifecycle import LIVE, Status
from gpudev.sdk.errors import ClientError
from gpudev.sdk.http.endpoints import ApiCall, ApiReply, get_job, list_jobs
from gpudev.wire.reservations import JobView

_T = TypeVar("_T")
_PAGE = 200
_MOST_SHOWN = 5


def choose_job(session: CommandSession, text: str | None, *, may_ask: bool = True) -> ApiReply[JobView]:
    """The named reservation; without a name the only active one, or the only live one."""
    if text is None:
        return session.api.fetch(get_job(_choose_only_job(session, may_ask=may_ask).reservation_id))
    return fetch_for_job(session, text, get_job, may_ask=may_ask)


def fetch_for_job(
    session: CommandSession, text: str, call: Callable[[str], ApiCall[_T]], *, may_ask: bool = True
) -> ApiReply[_T]:
    """The response to a request about the named reservation. An id costs no further request."""
    if not is_id(text):
        return session.api.fetch(call(_choose_named_job(session, text, may_ask=may_ask).reservation_id))
    try:
        return session.api.fetch(call(text.lower()))
    except ClientError as error:
        found = _find_other_meanings(session, text, error, may_ask=may_ask)
        if not found:
            raise
    return session.api.fetch(call(_choose_one(found, _several_named(text, found), may_ask=may_ask).reservation_id))


def list_live_jobs(session: CommandSession) -> list[JobView]:
    return session.api.fetch(list_jobs({"status": sorted(LIVE), "limit": _PAGE})).value.jobs


def matching_jobs(text: str, jobs: Sequence[JobView]) -> list[JobView]:
    """Those with this name, else those with this ssh host name."""
    from gpudev.sdk.remote import openssh  # slow to load, and ids do not need it

    named = [job for job in jobs if job.name == text]
    return named or [job for job in jobs if text in (openssh.preferred_host_name(job), openssh.host_alias(job))]


def _find_other_meanings(session: CommandSession, text: str, error: ClientError, *, may_ask: bool) -> list[JobView]:
    """A name may look like an id; a prefix may fit several ids."""
    if error.code == "not_found":
        return _find_named_jobs(session, text)
    if error.code != "ambiguous_id" or not _can_ask(may_ask):
        return []
    digits = text.lower().replace("-", "")
    jobs = session.api.fetch(list_jobs({"limit": _PAGE})).value.jobs
    return [job for job in jobs if job.reservation_id.replace("-", "").startswith(digits)]


def _choose_named_job(session: CommandSession, text: str, *, may_ask: bool) -> JobView:
    found = _find_named_jobs(session, text)
    if not found:
        step = "`gpu-dev list --all` shows your reservations"
        raise CliError(ExitCode.NOT_FOUND, f"you have no reservation with the id or name {text!r}", step)
    return _choose_one(found, _several_named(text, found), may_ask=may_ask)


def _find_named_jobs(session: CommandSession, text: str) -> list[JobView]:
    """Live ones first. Of those that have ended, the last one: the same command is often run again and again."""
    live = matching_jobs(text, list_live_jobs(session))
    return live or matching_jobs(text, session.api.fetch(list_jobs({"limit": _PAGE})).value.jobs)[:1]


def _choose_only_job(session: CommandSession, *, may_ask: bool) -> JobView:
    jobs = list_live_jobs(session)
    active = [job for job in jobs if job.status == Status.ACTIVE]
    candidates = active or jobs
    if not candidates:
        raise CliError(ExitCode.NOT_FOUND, "you have no live reservation", "Create one with `gpu-dev reserve`")
    return _choose_one(
        candidates, f"you have {len(candidates)} reservations, so an id or a name is required", may_ask=may_ask
    )


def _choose_one(jobs: Sequence[JobView], why_several: str, *, may_ask: bool) -> JobView:
    """The only one, or the user's choice. Raises a usage error that lists them if nobody can be asked."""
    if len(jobs) == 1:
        return jobs[0]
    if _can_ask(may_ask):
        return prompts.ask_reservation(jobs)
    shown = ", ".join(_describe_job(job) for job in jobs[:_MOST_SHOWN]) + (" …" if len(jobs) > _MOST_SHOWN else "")
    raise usage_error(why_several, f"Choose from {shown}")


def _can_ask(may_ask: bool) -> bool:
    return may_ask and output.can_ask()


def _several_named(text: str, jobs: Sequence[JobView]) -> str:
    return f"{len(jobs)} of your reservations are called {text!r}"


def _describe_job(job: JobView) -> str:
    name = f", {job.name}" if job.name else ""
    return f"{formatting.short_id(job.reservation_id)} ({formatting.hardware(job)}{name})"
