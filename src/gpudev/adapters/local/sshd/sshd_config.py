"""What an SSH server is told when it starts. All paths are as the SSH server itself sees them."""

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
