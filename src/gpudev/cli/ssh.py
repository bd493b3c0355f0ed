"""The ssh command line of a dev server: the system's own client, told the host key by the API so that it asks nothing.

The user's own keys and agent are used as ever; ~/.ssh/known_hosts is neither read nor written.
"""

import os
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from gpudev import places
from gpudev.cli import ssh_keys
from gpudev.cli.address import is_loopback
from gpudev.cli.exits import CliError, Exit, local_error
from gpudev.wire.jobs import JobView

_HOST_KEY = r"[A-Za-z0-9@.-]{1,64} [A-Za-z0-9+/]{16,8192}={0,3}"
_HOST = r"[A-Za-z0-9][A-Za-z0-9.:-]{0,254}"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_FORGET_AFTER_SECONDS = 60 * 86400
_FRESH_FOR = timedelta(seconds=15)
_PATIENCE_SECONDS = 5.0
_USUAL_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")


def find_program() -> str:
    program = shutil.which("ssh")
    if program is None:
        raise local_error(
            "there is no ssh client on this machine",
            "Install OpenSSH's, such as `apt install openssh-client` or `dnf install openssh-clients`",
        )
    return program


def command_line(program: str, job: JobView, command: Sequence[str], env: Mapping[str, str], *, tty: bool) -> list[str]:
    """What to run. Writes the host key where that command line looks for it."""
    host, port, user, host_key = _connection(job)
    alias = f"gpu-dev-{job.reservation_id.replace('-', '')[:8]}"
    known_hosts = places.personal_dir(env) / "known_hosts.d" / job.reservation_id
    _write_known_hosts(known_hosts, f"{alias} {host_key}\n")
    options = {
        "HostKeyAlias": alias,
        "UserKnownHostsFile": f'"{_verbatim(known_hosts)}"',
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "PreferredAuthentications": "publickey",
    }
    arguments = [program, "-p", str(port)]
    for name, value in options.items():
        arguments += ["-o", f"{name}={value}"]
    for key in _identities(env):
        arguments += ["-i", _verbatim(key)]
    if command and tty:
        arguments.append("-t")
    # Behind `--` nothing is an option any more, whatever it looks like.
    return [*arguments, "--", f"{user}@{host}", *_remote_command(command)]


def is_fresh(job: JobView, now: datetime) -> bool:
    """Whether it became ready so lately, on another machine, that the network there may still be learning the way."""
    since = now - job.launched_at if job.launched_at is not None else None
    return since is not None and since < _FRESH_FOR and not is_loopback(job.node_ip or "")


def wait_until_answers(job: JobView, patience: float = _PATIENCE_SECONDS) -> None:
    """Until its ssh server greets. ssh itself would give up at the first refusal; what it says after this stands."""
    deadline = time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((job.node_ip or "", job.node_port or 0), timeout=min(left, 1.0)) as line:
                if line.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        time.sleep(0.1)


def become(arguments: Sequence[str]) -> None:
    """From here on this process is ssh."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(arguments[0], list(arguments))


def _remote_command(command: Sequence[str]) -> list[str]:
    """One argument is a line for the remote shell; several are an argv that has to arrive as it is."""
    if not command:
        return []
    return [command[0] if len(command) == 1 else shlex.join(command)]


def _connection(job: JobView) -> tuple[str, int, str, str]:
    """What the API said, checked: it becomes part of a command line and of a file."""
    host, port, user, key = job.node_ip or "", job.node_port or 0, job.ssh_user or "", job.ssh_host_key or ""
    host_key = " ".join(key.split()[:2])
    texts = ((_HOST, host), (_USER, user), (_HOST_KEY, host_key))
    if not 0 < port < 65536 or not all(re.fullmatch(pattern, text) for pattern, text in texts):
        raise CliError(Exit.UNREACHABLE, "the API does not say how to reach this dev server", "Try again in a moment")
    return host, port, user, host_key


def _identities(env: Mapping[str, str]) -> list[Path]:
    """This system's own key, if there is one, and then those ssh would have tried by itself: naming one key keeps it
    from looking for the others."""
    own = places.private_key_file(env)
    if not own.exists():
        return []
    folder = places.home(env) / ".ssh"
    paired = [public.with_suffix("") for public in ssh_keys.own_key_files(env)[1:]]
    others = dict.fromkeys([*(folder / name for name in _USUAL_KEYS), *paired])
    return [own, *(path for path in others if path.exists())]


def _verbatim(path: Path) -> str:
    """ssh reads % in a path as the beginning of a token."""
    return str(path).replace("%", "%%")


def _write_known_hosts(path: Path, line: str) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        fresh.write_text(line, encoding="ascii")
        fresh.replace(path)
        _forget_old(path.parent)
    except OSError as error:
        raise local_error(f"{path} cannot be written: {error.strerror}") from error


def _forget_old(folder: Path) -> None:
    """No reservation lasts so long, and nobody should find thousands of these one day."""
    long_ago = time.time() - _FORGET_AFTER_SECONDS
    for path in folder.iterdir():
        if path.stat().st_mtime < long_ago:
            path.unlink(missing_ok=True)
