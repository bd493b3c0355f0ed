"""Configuration of the SSH server, environment of sessions, and files that change while it runs."""

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
    """Read at every login. While it is missing or unreadable, all logins fail."""
    home: str
    messages_path: str
    """Lines written by `append_message`; each is shown in all open terminals. The file need not exist yet."""
    username: str = "dev"
    """The only name that may log in. Sessions run with the uid of the server."""
    shell: str = "/bin/bash"
    """Where it does not exist, /bin/sh is used."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Given to every session. It overrides what the client sends."""
    motd_path: str | None = None
    """Shown when an interactive shell opens."""
    jupyter_path: str | None = None
    """The spec of Jupyter: whether it runs, and who may connect to it. Polled. None: Jupyter never runs here."""
    jupyter_report: int | None = None
    """A descriptor of the file for the report on Jupyter. None: no report."""
    command_exit_report: int | None = None
    """A descriptor of the file for the report that the reservation's command has ended. None: no report, and the dev
    server does not end with the command."""
    lifeline: int | None = None
    """A descriptor that reaches its end when the parent process is gone: then the server ends too. None: the kernel
    kills it."""
    closed_ports: frozenset[int] = frozenset()
    """Ports of this machine itself (the control plane's) to which no connection is forwarded (-L, -D, -W)."""
    sftp_servers: tuple[str, ...] = USUAL_SFTP_SERVERS
    """The first that exists serves sftp. Where none exists, asyncssh does."""
    login_seconds: float = 120.0
    """How long a login may take, including the typing of a key's passphrase."""
    keepalive_seconds: float = 30.0
    """A client that has been silent for this long gets a keepalive. After ten unanswered ones it is disconnected."""


# Environment of a session: ours, a few variables of the client, and those that describe the session

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LANG = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
# Language and terminal of the client. A client may set no others (LD_PRELOAD, PATH, GPU_DEV_*).
_FROM_CLIENT = re.compile(rb"LANG|LANGUAGE|LC_[A-Z]+|COLORTERM|TERM_PROGRAM|TERM_PROGRAM_VERSION|NO_COLOR")
_MAX_VALUE_LENGTH = 1024


def session_environment(
    config: SshdConfig, shell: str, from_client: Mapping[bytes, bytes], session_variables: Mapping[str, str]
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
        **_encoded(session_variables),
    }


def _is_allowed_from_client(name: bytes, value: bytes) -> bool:
    return _FROM_CLIENT.fullmatch(name) is not None and len(value) <= _MAX_VALUE_LENGTH and b"\0" not in value


def _encoded(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in variables.items()
    }


# Files from the control plane, polled and read when they have changed

_MAX_READ_BYTES = 1024 * 1024


class WatchedFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._signature: tuple[int, int, int] | None = None

    def read_if_changed(self) -> str | None:
        """Its text; empty when it does not exist. None: it has not changed, or cannot be read now."""
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                info = os.fstat(file.fileno())
                signature = (info.st_ino, info.st_mtime_ns, info.st_size)
                if signature == self._signature:
                    return None
                text = file.read(_MAX_READ_BYTES)
        except FileNotFoundError:
            signature, text = (0, 0, 0), ""
            if signature == self._signature:
                return None
        except OSError:
            return None
        self._signature = signature
        return text
