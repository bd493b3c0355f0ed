"""ssh configuration: a file with one Host per dev server, included from ~/.ssh/config.

Of ~/.ssh/config exactly one line is ours. Everything else in it, its mode and where it really lies stay as they are,
and what it was before we first touched it is kept beside it.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click

from gpudev import paths
from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.exit_codes import local_error, usage_error
from gpudev.domain.reservations.lifecycle import Status
from gpudev.sdk.api_address import is_loopback
from gpudev.sdk.credentials import file_lock
from gpudev.sdk.errors import ClientError
from gpudev.sdk.http.endpoints import list_jobs
from gpudev.sdk.remote import openssh, ssh_route
from gpudev.wire.reservations import JobView

_HEADING = "# Written by gpu-dev: changes are lost. `gpu-dev ssh-config` writes it anew, `--remove` takes it away.\n"
_BLOCK = re.compile(r"# (?P<id>[0-9a-f-]{36}) at (?P<url>\S+) until (?P<until>\S+)\nHost (?P<hosts>.*)\n(?:[ \t].*\n)*")
_SECTION = re.compile(r"\s*(host|match)\b", re.IGNORECASE)
_INCLUDE = re.compile(r"include(?:\s*=\s*|\s+)\"?([^\"]+?)\"?", re.IGNORECASE)
_BACKUP = "config.before-gpu-dev"


class SshConfigChange(NamedTuple):
    names: dict[str, str]
    """By reservation, the name that ssh knows it by."""
    included_now: bool
    """The person's own configuration was changed, and it was not ours before."""


def own_config_file(env: Mapping[str, str]) -> Path:
    return paths.personal_dir(env) / "ssh_config"


def user_config_file(env: Mapping[str, str]) -> Path:
    return paths.home_dir(env) / ".ssh" / "config"


def refresh_config(session: CommandSession, now: datetime) -> SshConfigChange:
    """Bring both files up to date with all that runs at this API; those of other APIs stay until their time is over."""
    jobs = session.api.fetch(list_jobs({"status": [Status.ACTIVE], "limit": 200})).value.jobs
    return _rewrite_config(session, jobs, lambda block: block.url != session.address.url and block.ends_after(now), now)


def add_reservation(session: CommandSession, job: JobView, now: datetime) -> SshConfigChange | None:
    """Add this one, unless the person does not want it. What goes wrong with it stops nobody, and is told."""
    if session.preferences.ssh_config == "off":
        return None
    try:
        if _seems_outdated(session, job, now):
            return refresh_config(session, now)
        return _rewrite_config(
            session, [job], lambda block: block.reservation_id != job.reservation_id and block.ends_after(now), now
        )
    except ClientError as error:
        output.write_note(f"Note: {error.message}, so ssh does not know your dev server by name")
        return None


def remove_reservations(env: Mapping[str, str], reservation_ids: Collection[str]) -> None:
    """These have ended. Where nothing of ours is, nothing is made."""
    path = own_config_file(env)
    if not path.exists():
        return
    with file_lock(path):
        kept = [block for block in _parse_blocks(_read(path)) if block.reservation_id not in reservation_ids]
        _write(path, _join_blocks([block.text for block in kept]), 0o600)


def _seems_outdated(session: CommandSession, job: JobView, now: datetime) -> bool:
    """Who has its name may have ended, and who should be over may have been extended, without this machine's doing."""
    name = _preferred_name(job)
    others = [b for b in _parse_blocks(_read(own_config_file(session.env))) if b.reservation_id != job.reservation_id]
    return any(name in b.hosts or (b.url == session.address.url and not b.ends_after(now)) for b in others)


def _rewrite_config(
    session: CommandSession, jobs: Sequence[JobView], keeps: Callable[["_Block"], bool], now: datetime
) -> SshConfigChange:
    env = session.env
    path = own_config_file(env)
    with file_lock(path):
        told = {job.reservation_id for job in jobs}  # by whichever address they were known before
        kept = [block for block in _parse_blocks(_read(path)) if keeps(block) and block.reservation_id not in told]
        names = choose_names(jobs, {host for block in kept for host in block.hosts})
        made = [_format_block(session, job, names[job.reservation_id]) for job in jobs]
        _write(path, _join_blocks([*made, *(block.text for block in kept)]), 0o600)
        _remove_ended_host_keys(env, told | {block.reservation_id for block in kept}, now)
        return SshConfigChange(names, _ensure_include(env))


def _join_blocks(blocks: Sequence[str]) -> str:
    return _HEADING + "".join(f"\n{block}" for block in blocks)


def remove_config(env: Mapping[str, str]) -> bool:
    """Both away again. False: there was nothing of ours."""
    path, theirs = own_config_file(env), user_config_file(env)
    with file_lock(path):
        existed = path.exists()
        path.unlink(missing_ok=True)
        text = _read(theirs)
        without = _without_include(text, path)
        if without != text:
            _write(theirs, without, 0o600)
        return existed or without != text


def choose_names(jobs: Sequence[JobView], taken: Collection[str] = ()) -> dict[str, str]:
    """What people gave them as names, as far as those can stand in a host name and are not taken; else their ids. The
    first keeps its name when others come: an editor that connects again must not find itself on another machine."""
    chosen: dict[str, str] = {}
    by_id = {openssh.host_alias(job) for job in jobs}  # which are always theirs
    for job in sorted(jobs, key=lambda job: job.created_at):
        name = _preferred_name(job)
        is_free = name is not None and name not in by_id and name not in taken and name not in chosen.values()
        chosen[job.reservation_id] = name if name is not None and is_free else openssh.host_alias(job)
    return chosen


def _preferred_name(job: JobView) -> str | None:
    plain = re.sub(r"[^a-z0-9.-]+", "-", (job.name or "").lower()).strip("-.")
    return f"gpu-dev-{plain}" if plain else None


class _Block(NamedTuple):
    """One dev server, as it stands in our file."""

    reservation_id: str
    url: str
    until: str
    hosts: tuple[str, ...]
    text: str

    def ends_after(self, now: datetime) -> bool:
        try:
            return datetime.fromisoformat(self.until) > now
        except (ValueError, TypeError):
            return False


def _parse_blocks(text: str) -> list[_Block]:
    return [
        _Block(m["id"], m["url"], m["until"], tuple(m["hosts"].split()), m[0].rstrip("\n") + "\n")
        for m in _BLOCK.finditer(text)
    ]


def _format_block(session: CommandSession, job: JobView, name: str) -> str:
    # On this machine there is nothing to be tried; elsewhere the way is chosen anew by each connection, for people
    # carry their machines from one network to another.
    is_here = session.address.is_local and is_loopback(job.node_ip or "")
    proxy = None if is_here else ssh_route.proxy_command(session, job, auto=True)
    hosts = " ".join(dict.fromkeys((name, openssh.host_alias(job))))
    until = (job.expires_at or datetime.now(UTC)).isoformat()
    lines = [
        f"# {job.reservation_id} at {session.address.url} until {until}",
        f"Host {hosts}",
        *openssh.build_target(job, session.env, proxy).as_config_lines(),
        "    ServerAliveInterval 30",
    ]
    return "\n".join(lines) + "\n"


def _ensure_include(env: Mapping[str, str]) -> bool:
    """One line at the top: further down it would belong to whichever host stands above it."""
    path, theirs = own_config_file(env), user_config_file(env)
    line = _include_line(path)
    text = _read(theirs)
    without = _without_include(text, path)
    wanted = f"{line}\n\n{without}" if without.strip() else f"{line}\n"
    if text == wanted or (without != text and _is_at_top(text, path)):
        return False
    theirs.parent.mkdir(mode=0o700, exist_ok=True)
    backup = theirs.with_name(_BACKUP)
    if text and not backup.exists():
        _write(backup, text, theirs.stat().st_mode & 0o777)
    _write(theirs, wanted, 0o600)
    return without == text


def _include_line(path: Path) -> str:
    plain = re.sub(r"([*?\[\]])", r"\\\1", str(path))  # ssh reads it as a pattern
    # Newer versions put values in place of %x and ${x} first, older ones do not: a pattern is the same to both.
    return f'Include "{re.sub("[%$]", "?", plain)}"'


def _is_ours(line: str, path: Path) -> bool:
    """Also as somebody wrote it by hand, such as Include ~/.gpu-dev/ssh_config."""
    found = _INCLUDE.fullmatch(line.strip())
    if found is None:
        return False
    at_home = path.parent.parent  # where ssh sees ~
    return line.strip() == _include_line(path) or re.sub(r"^~(?=/)", lambda _: str(at_home), found[1]) == str(path)


def _is_at_top(text: str, path: Path) -> bool:
    found = [number for number, one in enumerate(text.splitlines()) if _is_ours(one, path)]
    first_section = next((n for n, one in enumerate(text.splitlines()) if _SECTION.match(one)), len(text))
    return len(found) == 1 and found[0] < first_section


def _without_include(text: str, path: Path) -> str:
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    for number, line in enumerate(lines):
        is_gap = number > 0 and _is_ours(lines[number - 1], path) and not line.strip()  # which came with it
        if not _is_ours(line, path) and not is_gap:
            kept.append(line)
    return "".join(kept)


def _remove_ended_host_keys(env: Mapping[str, str], living: set[str], now: datetime) -> None:
    """Host keys of what is over. Those of this moment may belong to a connection that is being made."""
    folder = openssh.known_hosts_file(env, "x").parent
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            if path.name not in living and now.timestamp() - path.stat().st_mtime > 3600:
                path.unlink()
        except FileNotFoundError:
            continue


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")  # each line's end as it is
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise local_error(f"{path} cannot be read: {error.strerror}") from error


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all. A link is followed; a file that is there keeps its mode and its owner, and a new one is
    its folder's owner's: root may work in somebody's home, whose ssh could read neither file afterwards."""
    real = path.resolve()
    temporary = real.with_name(f"{real.name}.{os.getpid()}.tmp")
    try:
        mode = real.stat().st_mode & 0o777 if real.exists() else mode
        owner = (real if real.exists() else real.parent).stat()
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), mode)
            file.write(text.encode("utf-8", "surrogateescape"))
        temporary.replace(real)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise local_error(f"{path} cannot be written: {error.strerror}") from error


# The command `gpu-dev ssh-config`.


@click.command("ssh-config")
@click.option("--remove", is_flag=True, help="Take our line out of ~/.ssh/config, and our file away.")
@click.option("--json", "as_json", is_flag=True, help="Print the names as JSON.")
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
def configure(remove: bool, as_json: bool, api_url: str | None) -> None:
    """Give your dev servers names that ssh, scp, rsync and every editor know, such as gpu-dev-mytrain.

    They are written to ~/.gpu-dev/ssh_config, which ~/.ssh/config includes from then on. `gpu-dev reserve` does this by
    itself, unless `gpu-dev config set ssh_config off` says otherwise.
    """
    if remove and as_json:
        raise usage_error("give --remove or --json, not both")
    if remove:
        gone = remove_config(os.environ)
        output.write_line("Removed." if gone else "There was nothing of ours.")
        return
    session = CommandSession(api_url)
    written = refresh_config(session, formatting.utc_now())
    if as_json:
        output.write_line(json.dumps(written.names))
        return
    if written.included_now:
        output.write_note(f"{user_config_file(session.env)} now includes {own_config_file(session.env)}")
    for job_id, name in written.names.items():
        output.write_line(f"{formatting.short_id(job_id)}  ssh {name}")
    if not written.names:
        output.write_line("You have no dev server at the moment.")
