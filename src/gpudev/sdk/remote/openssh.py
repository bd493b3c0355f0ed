"""ssh and scp command lines for a dev server, with its host key from the API.

Uses the user's keys and agent; neither reads nor writes ~/.ssh/known_hosts. `ssh_route` chooses the route, given here
as the proxy command; None: direct.
"""

import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpudev import paths
from gpudev.sdk.api_address import is_loopback
from gpudev.sdk.errors import LocalError, Unavailable
from gpudev.sdk.remote import ssh_keys
from gpudev.wire.reservations import JobView

_HOST_KEY = r"[A-Za-z0-9@.-]{1,64} [A-Za-z0-9+/]{16,8192}={0,3}"
_HOST = r"[A-Za-z0-9][A-Za-z0-9.:-]{0,254}"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_REMOVE_AFTER_SECONDS = 60 * 86400
SSH_FAILED = 255
"""Exit code of ssh if the connection fails or breaks."""
_DEFAULT_KEY_NAMES = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
ProxyCommand = tuple[str, ...] | None


class CopyPath(NamedTuple):
    is_remote: bool
    path: str


class SshTarget(NamedTuple):
    """ssh parameters of a dev server."""

    alias: str
    """Host name in our known_hosts file and in ssh's messages."""
    host: str
    port: int
    user: str
    options: dict[str, str]
    identities: tuple[Path, ...]

    def as_arguments(self) -> list[str]:
        arguments: list[str] = []
        for name, value in self.options.items():
            arguments += ["-o", f"{name}={value}"]
        for key in self.identities:  # not -i: ssh checks that path before it expands %%
            arguments += ["-o", f'IdentityFile="{escape_percent(key)}"']
        return arguments

    def as_config_lines(self) -> list[str]:
        """The lines below `Host`."""
        return [
            f"    HostName {self.host}",
            f"    Port {self.port}",
            f"    User {self.user}",
            *(f"    {option} {value}" for option, value in self.options.items()),
            *(f'    IdentityFile "{escape_percent(key)}"' for key in self.identities),
        ]


def find_program(name: str = "ssh") -> str:
    program = shutil.which(name)
    if program is None:
        raise LocalError(
            f"{name} is not installed",
            "Install OpenSSH, e.g. `apt install openssh-client` or `dnf install openssh-clients`",
        )
    return program


def build_target(job: JobView, env: Mapping[str, str], proxy: ProxyCommand = None) -> SshTarget:
    """Also writes the host key to the known_hosts file that the options name."""
    host, port, user, host_key = check_connection(job)
    alias = host_alias(job)
    known_hosts = known_hosts_file(env, job.reservation_id)
    _write_known_hosts(known_hosts, f"{alias} {host_key}\n")
    options = {
        "HostKeyAlias": alias,
        "UserKnownHostsFile": f'"{escape_percent(known_hosts)}"',
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "PreferredAuthentications": "publickey",
    }
    if proxy is not None:
        options["ProxyCommand"] = shlex.join(proxy).replace("%", "%%")
        host = alias  # never resolved
    elif is_loopback(host):
        options["ProxyCommand"] = "none"  # the user's jump host for all hosts does not apply to this machine
    return SshTarget(alias, host, port, user, options, tuple(_find_identities(env)))


def command_line(
    program: str,
    job: JobView,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    tty: bool,
    proxy: ProxyCommand = None,
    more: Sequence[str] = (),
) -> list[str]:
    """`more`: further ssh options."""
    target = build_target(job, env, proxy)
    arguments = [program, "-p", str(target.port), *target.as_arguments(), *more]
    if command and tty:
        arguments.append("-t")
    # After `--` ssh parses no options.
    return [*arguments, "--", f"{target.user}@{target.host}", *([remote_command_line(command)] if command else [])]


def copy_line(
    program: str, job: JobView, paths: Sequence[CopyPath], env: Mapping[str, str], *, proxy: ProxyCommand, quiet: bool
) -> list[str]:
    """An scp command line: folders with their contents, times kept. The last path is the target."""
    target = build_target(job, env, proxy)
    host = f"[{target.host}]" if ":" in target.host else target.host
    named = [f"{target.user}@{host}:{path}" if is_remote else path for is_remote, path in paths]
    more = ["-q"] if quiet else []
    return [program, "-rp", *more, "-P", str(target.port), *target.as_arguments(), "--", *named]


def replace_process(arguments: Sequence[str]) -> None:
    """Execute ssh in place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(arguments[0], list(arguments))


def host_alias(job: JobView) -> str:
    """The host name from its id, which is unique."""
    return f"gpu-dev-{job.reservation_id.replace('-', '')[:8]}"


def preferred_host_name(job: JobView) -> str | None:
    """The host name from its name, which another reservation may have too. None: the name has no usable characters."""
    plain = re.sub(r"[^a-z0-9.-]+", "-", (job.name or "").lower()).strip("-.")
    return f"gpu-dev-{plain}" if plain else None


def known_hosts_file(env: Mapping[str, str], reservation_id: str) -> Path:
    return paths.personal_dir(env) / "known_hosts.d" / reservation_id


def escape_percent(path: Path) -> str:
    """ssh expands % tokens in paths."""
    return str(path).replace("%", "%%")


def remote_command_line(command: Sequence[str]) -> str:
    """One argument is a command line for the remote shell; several are an argv, passed unchanged."""
    return command[0] if len(command) == 1 else shlex.join(command)


def check_connection(job: JobView) -> tuple[str, int, str, str]:
    """Validate the API's values, which become part of a command line and of a file."""
    host, port, user, key = job.node_ip or "", job.node_port or 0, job.ssh_user or "", job.ssh_host_key or ""
    host_key = " ".join(key.split()[:2])
    texts = ((_HOST, host), (_USER, user), (_HOST_KEY, host_key), (r"[0-9a-f-]{36}", job.reservation_id))
    if not 0 < port < 65536 or not all(re.fullmatch(pattern, text) for pattern, text in texts):
        raise Unavailable("the API returned no valid ssh address for this dev server", "Try again in a moment")
    return host, port, user, host_key


def _find_identities(env: Mapping[str, str]) -> list[Path]:
    """gpu-dev's own key, if it exists, then ssh's defaults, which ssh skips once an IdentityFile is given."""
    own = paths.private_key_file(env)
    if not own.exists():
        return []
    folder = paths.home_dir(env) / ".ssh"
    paired = [public.with_suffix("") for public in ssh_keys.list_own_key_files(env)[1:]]
    others = dict.fromkeys([*(folder / name for name in _DEFAULT_KEY_NAMES), *paired])
    return [own, *(path for path in others if path.exists())]


def _write_known_hosts(path: Path, line: str) -> None:
    # Unique per thread: programs may use one dev server from several.
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        fresh.write_text(line, encoding="ascii")
        fresh.replace(path)
        remove_old_files(path.parent)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from error


def remove_old_files(folder: Path) -> None:
    """Keeps the folder small; no reservation lasts that long."""
    long_ago = time.time() - _REMOVE_AFTER_SECONDS
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < long_ago:
                path.unlink()
        except FileNotFoundError:  # removed by another process
            continue
