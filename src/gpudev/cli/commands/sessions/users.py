"""`gpu-dev users`: collaborators of a dev server."""

import time

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandApi, CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.cli.job_selection import choose_job, fetch_for_job
from gpudev.cli.options import ID, TEXT, api_options
from gpudev.domain.reservations.lifecycle import Status
from gpudev.sdk.errors import NotFound
from gpudev.sdk.http import session_endpoints
from gpudev.sdk.http.endpoints import ApiReply
from gpudev.wire.reservations import JobView
from gpudev.wire.sessions import DevServerUsers

_COLUMNS = ("GITHUB", "KEYS", "ADDED", "BY")
_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.25
_no_wait = click.option("--no-wait", is_flag=True, help="Do not wait until the dev server has applied it.")


@click.group()
def users() -> None:
    """Manage collaborators of a dev server. They log in with the public keys of their GitHub accounts.

    Collaborators connect directly with ssh, as the user `dev`, with the same permissions as you.

    \b
    gpu-dev users add 3f2a9c1e octocat
    gpu-dev users list
    gpu-dev users remove 3f2a9c1e octocat
    """


@users.command("list")
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@api_options
def list_users(job_id: str | None, as_json: bool, api_url: str | None) -> None:
    """List collaborators. ID may be omitted if you have only one reservation."""
    session = CommandSession(api_url)
    if job_id is None:
        job_id = choose_job(session, None, may_ask=not as_json).value.reservation_id
    reply = fetch_for_job(session, job_id, session_endpoints.list_users, may_ask=not as_json)
    if as_json:
        output.write_json(reply.raw)
        return
    _show(reply.value)


@users.command("add")
@click.argument("job_id", metavar="ID", type=ID)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=TEXT)
@_no_wait
@api_options
def add(job_id: str, names: tuple[str, ...], *, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Add GitHub users, with their current public keys.

    This takes effect within seconds, without a restart; on a dev server that is not running yet, when it starts.
    """
    session = CommandSession(api_url)
    job = choose_job(session, job_id, may_ask=not as_json).value
    reply = session.api.fetch(session_endpoints.add_users(job.reservation_id, names))
    reply = _wait_until_in_effect(session.api, job, reply, wait=not no_wait)
    if as_json:
        output.write_json(reply.raw)
        return
    added, several = _join_names(sorted({name.lower() for name in names})), len({name.lower() for name in names}) > 1
    if job.status != Status.ACTIVE:
        output.write_line(f"{added} can log in as soon as the dev server is running.")
    elif not reply.value.in_effect:
        output.write_line(f"{added} can log in shortly.")
    else:
        output.write_line(
            f"{added} can log in now, each with their own key:" if several else f"{added} can log in now:"
        )
        output.write_line(f"  {job.ssh_command}")


@users.command("remove")
@click.argument("job_id", metavar="ID", type=ID)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=TEXT)
@_no_wait
@api_options
def remove(job_id: str, names: tuple[str, ...], *, no_wait: bool, as_json: bool, api_url: str | None) -> None:
    """Remove GitHub users. Their connections are closed; their processes keep running."""
    session = CommandSession(api_url)
    job = choose_job(session, job_id, may_ask=not as_json).value
    removed: dict[str, ApiReply[DevServerUsers]] = {}
    missing: list[NotFound] = []
    for name in dict.fromkeys(name.lower() for name in names):
        try:
            removed[name] = session.api.fetch(session_endpoints.remove_user(job.reservation_id, name))
        except NotFound as error:  # a misspelt name does not stop the others
            missing.append(error)
    if removed:
        reply = _wait_until_in_effect(session.api, job, list(removed.values())[-1], wait=not no_wait)
        if as_json:
            output.write_json(reply.raw)
        else:
            output.write_line(f"{_join_names(sorted(removed))} can no longer log in.")
    if missing:
        raise missing[0].with_next_step(
            f"`gpu-dev users list {formatting.short_id(job.reservation_id)}` lists collaborators"
        )


def _wait_until_in_effect(
    api: CommandApi, job: JobView, reply: ApiReply[DevServerUsers], *, wait: bool
) -> ApiReply[DevServerUsers]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while wait and job.status == Status.ACTIVE and not reply.value.in_effect:
        if time.monotonic() > deadline:
            why = reply.value.trouble or "still pending"
            raise CliError(ExitCode.UNREACHABLE, f"the change is recorded but not in effect yet ({why})", _NEXT_STEP)
        time.sleep(_POLL_SECONDS)
        reply = api.fetch(session_endpoints.list_users(job.reservation_id))
    return reply


_NEXT_STEP = "It is retried automatically; `gpu-dev users list` shows the state"


def _show(view: DevServerUsers) -> None:
    if not view.users:
        output.write_line("No collaborators; add one with `gpu-dev users add ID NAME`.")
    else:
        now = formatting.utc_now()
        rows = [
            (user.github_user, str(user.keys), formatting.local_time(user.added_at, now), user.added_by)
            for user in view.users
        ]
        output.write_line(output.table(_COLUMNS, rows))
    if not view.in_effect:
        output.write_line(f"Not in effect yet{f': {output.clean(view.trouble)}' if view.trouble else ''}.")


def _join_names(names: list[str]) -> str:
    return output.clean(" and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names))
