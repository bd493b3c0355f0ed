"""What an SSH server is told: its configuration, the environment of sessions, and files that change while it runs."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

USUAL_SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",  # Debian, Ubuntu
    "/usr/libexec/openssh/sftp-server",  # Fedora, RHEL
    "/usr/lib/ssh/sftp-server",  # Arch, SUSE, Alpine
    "/usr/libexec/sftp-server",  # macOS, BSD
)


@dataclass(frozen=True, slots=True)
class SshdConfig:
    host_key: str = field(repr=False)
    """The private host key, as the text of an OpenSSH key file."""
    authorized_keys_path: str
    """Read anew whenever somebody logs in. A missing or unreadable file lets nobody in."""
    home: str
    messages_path: str
    """Lines written by `append_message`; each is shown in all open terminals. The file need not exist yet."""
    username: str = "dev"
    """The only name that may log in; it stands for the uid the server runs as."""
    shell: str = "/bin/bash"
    """/bin/sh stands in where this does not exist."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Given to every session; stronger than what the client sends."""
    motd_path: str | None = None
    """Shown when an interactive shell opens."""
    jupyter_path: str | None = None
    """Says whether Jupyter shall run, and who may go to it; looked at now and then. None: it never does here."""
    jupyter_report: int | None = None
    """A descriptor of the file where it is written how Jupyter is."""
    command_exit_report: int | None = None
    """A descriptor of the file where it is written that the command it was reserved for has ended. None: nobody
    listens, and it goes on."""
    lifeline: int | None = None
    """A descriptor that has ended once whoever keeps this server is gone: it ends too. None: the kernel sees to it."""
    refuse_forward_ports: frozenset[int] = frozenset()
    """Ports of this machine itself (the control plane's) to which no connection is forwarded (-L, -D, -W)."""
    sftp_servers: tuple[str, ...] = USUAL_SFTP_SERVERS
    """The first that exists serves sftp; where none does, asyncssh does."""
    login_seconds: float = 120.0
    """How long logging in may take; a key's passphrase is typed within it."""
    keepalive_seconds: float = 30.0
    """A client that has been silent for this long is asked whether it is still there; ten times in vain: gone."""


# The environment of a session: ours, what little the client may add, and what describes the session itself.


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LANG = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
# How the client's terminal speaks and looks. Anything else (LD_PRELOAD, PATH, GPU_DEV_*) is not for a client to set.
_FROM_CLIENT = re.compile(rb"LANG|LANGUAGE|LC_[A-Z]+|COLORTERM|TERM_PROGRAM|TERM_PROGRAM_VERSION|NO_COLOR")
_LONGEST_VALUE = 1024


def session_environment(
    config: SshdConfig, shell: str, from_client: Mapping[bytes, bytes], facts: Mapping[str, str]
) -> dict[bytes, bytes]:
    ours = {
        "HOME": config.home,
        "USER": config.username,
        "LOGNAME": config.username,
        "SHELL": shell,
        "PATH": _PATH,
        "LANG": _LANG,
    }
    return {
        **_encoded(ours),
        **{name: value for name, value in from_client.items() if _is_allowed_from_client(name, value)},
        **_encoded(config.environment),
        **_encoded(facts),
    }


def _is_allowed_from_client(name: bytes, value: bytes) -> bool:
    return _FROM_CLIENT.fullmatch(name) is not None and len(value) <= _LONGEST_VALUE and b"\0" not in value


def _encoded(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in variables.items()
    }


# Files through which the control plane speaks to a dev server: looked at now and then, read when they changed.


_MOST_READ = 1024 * 1024


class WatchedFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._signature: tuple[int, int, int] | None = None

    def read_if_changed(self) -> str | None:
        """Its text; empty when it is gone. None: nothing new, or it cannot be read right now."""
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                info = os.fstat(file.fileno())
                signature = (info.st_ino, info.st_mtime_ns, info.st_size)
                if signature == self._signature:
                    return None
                text = file.read(_MOST_READ)
        except FileNotFoundError:
            signature, text = (0, 0, 0), ""
            if signature == self._signature:
                return None
        except OSError:
            return None
        self._signature = signature
        return text
