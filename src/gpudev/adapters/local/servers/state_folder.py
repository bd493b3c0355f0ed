"""The state folder: files of dev servers, their records as JSON, and the folders of disks.

Layout, below the state folder::

    servers/<reservation id>/   record.json, host_key, run/ (keys, messages, banner), workspace/, home/ (scratch)
        members/<rank>/         launch.json, lock, process.json, ready, failure, ended.json, log, tmp/, var-tmp/,
                                root/
    disks/<volume id>/          the owner's /home/dev; before there were volumes, named by the disk's own id
    trash/                      folders that are being removed
    lost/                       folders of dev servers without a record, kept for a person to decide

Disks are never removed here. Folder names come from ids only, never from what a user typed. Everything here blocks:
call it in a thread.
"""

import fcntl
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from gpudev.adapters.atomic_write import write_atomically
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.launch_spec import LaunchSpec
from gpudev.adapters.local.machine.processes import ProcessIdentity, is_alive
from gpudev.adapters.local.network.plan import NetworkId
from gpudev.adapters.local.servers.pid1_reports import (
    COMMAND_EXIT_FILE,
    FAILURE_FILE,
    JUPYTER_FILE,
    LAUNCH_FILE,
    LOCK_FILE,
    LOG_FILE,
    PERSONALIZATION_FILE,
    PROCESS_FILE,
    READY_FILE,
)
from gpudev.domain.cluster import NodeShare
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.domain.reservations.command_exit import CommandExit, parse_command_exit
from gpudev.domain.sessions.addons import JupyterSpec
from gpudev.domain.untrusted_json import parse_untrusted_json
from gpudev.ports.cluster import HomeVolume, ServerSpec


@dataclass(frozen=True, slots=True)
class ServerRecord:
    spec: ServerSpec
    ports: tuple[int, ...]
    """The port of each member's SSH server, by rank."""
    master_port: int | None
    """The port at which the members of a gang find each other. None: not a gang."""
    host: str | None = None
    """The address on which its SSH servers listen. None: the current setting of the cluster."""
    network: NetworkId | None = None
    """Its own network. None: it shares the host's."""


@dataclass(frozen=True, slots=True)
class MemberExit:
    """How a member's first process ended."""

    reason: str
    watched: bool
    """Whether a control plane watched when it ended."""


@dataclass(frozen=True, slots=True)
class MemberPersonalization:
    """A member's report on the owner's personalization."""

    outcome: str | None
    """The result so far, as text for people. None: nothing reported yet."""
    is_final: bool


class InvalidServerRecord(ValueError):
    """Another program or another version wrote it."""


def server_record_to_json(record: ServerRecord) -> str:
    spec = asdict(record.spec)
    spec["reservation_id"] = str(record.spec.reservation_id)
    spec["disk_id"] = str(record.spec.disk_id) if record.spec.disk_id else None
    spec["expires_at"] = record.spec.expires_at.isoformat() if record.spec.expires_at else None
    return json.dumps(
        {
            "spec": spec,
            "ports": record.ports,
            "master_port": record.master_port,
            "host": record.host,
            "network": None if record.network is None else asdict(record.network),
        },
        indent=1,
    )


def server_record_from_json(text: str) -> ServerRecord:
    try:
        data = json.loads(text)
        spec, network = _spec_from_json(data["spec"]), data.get("network")
        return ServerRecord(
            spec,
            tuple(data["ports"]),
            data["master_port"],
            data.get("host"),
            None if network is None else NetworkId(**network),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidServerRecord(f"{type(error).__name__}: {error}") from error


def _spec_from_json(data: dict[str, Any]) -> ServerSpec:
    volume, jupyter = data.get("volume"), data.get("jupyter")
    return ServerSpec(
        **{
            **data,
            "reservation_id": ReservationId(UUID(data["reservation_id"])),
            "user_id": UserId(data["user_id"]),
            "disk_id": DiskId(UUID(data["disk_id"])) if data["disk_id"] else None,
            "expires_at": datetime.fromisoformat(data["expires_at"]) if data["expires_at"] else None,
            "shares": tuple(
                NodeShare(**{**share, "gpu_indices": tuple(share["gpu_indices"])}) for share in data["shares"]
            ),
            "ssh_public_keys": tuple(data["ssh_public_keys"]),
            "volume": None if volume is None else HomeVolume(**volume),
            "jupyter": None if jupyter is None else JupyterSpec(**jupyter),
        }
    )


# Folders

_SKELETON = Path("/etc/skel")
_EXIT_FILE = "ended.json"
_LOG_TAIL = 4096
_MAX_PERSONALIZATION_BYTES = 1000
_MAX_JUPYTER_REPORT_BYTES = 4096
_MAX_COMMAND_EXIT_BYTES = 64 * 1024
_DAMAGED = (ValueError, TypeError, KeyError)
"""Raised by reading a file that a loss of power cut short. Most files are not important enough to sync them."""


class MemberFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rank(self) -> int:
        return int(self.path.name)

    def prepare(self, folder_mode: int) -> None:
        """Prepare a new launch: remove the reports of an earlier one."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(folder_mode)
        reports = (
            READY_FILE,
            FAILURE_FILE,
            _EXIT_FILE,
            LOG_FILE,
            JUPYTER_FILE,
            PERSONALIZATION_FILE,
            COMMAND_EXIT_FILE,
        )
        for name in (PROCESS_FILE, *reports):
            (self.path / name).unlink(missing_ok=True)
        for name, mode in (("root", 0o755), ("tmp", 0o1777), ("var-tmp", 0o1777)):
            (self.path / name).mkdir(exist_ok=True)
            (self.path / name).chmod(mode)

    def write_launch(self, launch: LaunchSpec) -> None:
        write_atomically(self.path / LAUNCH_FILE, launch.to_json())

    def find_isolation_mode(self) -> IsolationMode | None:
        """The mode it was launched with. The mode of new launches may differ by now."""
        text = _read_text(self.path / LAUNCH_FILE)
        try:
            return None if text is None else LaunchSpec.from_json(text).mode
        except _DAMAGED:
            return IsolationMode.PLAIN  # for the teardown, the mode with the fewest assumptions

    def take_lock(self) -> int | None:
        """The lock as a descriptor. None: it is held.

        It is passed on to the member's first process. So it is free exactly when neither that process lives nor one
        that could still become it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def is_locked(self) -> bool:
        fd = self.take_lock()
        if fd is None:
            return True
        os.close(fd)
        return False

    def find_process(self) -> ProcessIdentity | None:
        """Its first process, from the file that the process wrote.

        In a copy of this folder the file names the process of the original, which does not hold the copy's lock.
        """
        text = _read_text(self.path / PROCESS_FILE)
        try:
            process = None if text is None else ProcessIdentity(**parse_untrusted_json(text))
        except _DAMAGED:
            return None
        if process is not None and is_alive(process) and not self.is_locked():
            return None if is_alive(process) else process
        return process

    def is_ready(self) -> bool:
        return (self.path / READY_FILE).exists()

    def find_failure(self) -> str | None:
        return _read_text(self.path / FAILURE_FILE)

    def find_exit(self) -> MemberExit | None:
        text = _read_text(self.path / _EXIT_FILE)
        try:
            return None if text is None else MemberExit(**parse_untrusted_json(text))
        except _DAMAGED:
            return None

    def read_jupyter_report(self) -> str | None:
        """The dev server's report on Jupyter: untrusted, and read no further than our own report could be long.

        None: it was launched by a version without Jupyter.
        """
        try:
            with (self.path / JUPYTER_FILE).open("rb") as report:
                return report.read(_MAX_JUPYTER_REPORT_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None

    def find_personalization(self) -> MemberPersonalization | None:
        """Progress of the owner's personalization. None: there is none. The text is untrusted and therefore cleaned."""
        try:
            with (self.path / PERSONALIZATION_FILE).open("rb") as file:
                report = parse_untrusted_json(file.read(_MAX_PERSONALIZATION_BYTES))
            outcome = "".join(letter for letter in str(report["words"]) if letter.isprintable())
            return MemberPersonalization(outcome or None, bool(report["final"]))
        except FileNotFoundError:
            return None
        except _DAMAGED:
            return MemberPersonalization(None, False)  # it has not begun, or the file is being written now

    def find_command_exit(self) -> CommandExit | None:
        """The exit of the reservation's command. None: it has not ended. Untrusted."""
        try:
            with (self.path / COMMAND_EXIT_FILE).open("rb") as report:
                return parse_command_exit(report.read(_MAX_COMMAND_EXIT_BYTES))
        except FileNotFoundError:
            return None

    def write_exit(self, ended: MemberExit) -> None:
        if self.path.is_dir():
            write_atomically(self.path / _EXIT_FILE, json.dumps(asdict(ended)))

    def last_log_lines(self, count: int = 8) -> list[str]:
        try:
            with (self.path / LOG_FILE).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
                lines = log.read().decode(errors="replace").splitlines()[-count:]
        except FileNotFoundError:
            return []
        # Users can influence these lines, and they are shown in other people's terminals.
        return ["".join(letter for letter in line if letter.isprintable()) for line in lines]


class ServerFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def workspace(self) -> Path:
        return self.path / "workspace"

    @property
    def scratch_home(self) -> Path:
        return self.path / "home"

    @property
    def host_key(self) -> Path:
        return self.path / "host_key"

    @property
    def messages(self) -> Path:
        return self.run / "messages"

    def exists(self) -> bool:
        return self.path.is_dir()

    def member(self, rank: int) -> MemberFolder:
        return MemberFolder(self.path / "members" / str(rank))

    def members(self) -> list[MemberFolder]:
        """The folders that exist, regardless of the record."""
        try:
            ranks = sorted(int(path.name) for path in (self.path / "members").iterdir() if path.name.isdecimal())
        except FileNotFoundError:
            return []
        return [self.member(rank) for rank in ranks]

    def prepare(self, uid: int, folder_mode: int) -> None:
        for path in (self.path, self.path / "members"):
            path.mkdir(exist_ok=True)
            path.chmod(folder_mode)
        self.run.mkdir(exist_ok=True)
        self.run.chmod(0o755)
        self.messages.touch(mode=0o644)
        ensure_owned_folder(self.workspace, uid)

    def ensure_scratch_home(self, uid: int) -> Path:
        ensure_home(self.scratch_home, uid)
        return self.scratch_home

    def write_record(self, record: ServerRecord) -> None:
        write_atomically(self.path / "record.json", server_record_to_json(record), durable=True)

    def find_record(self) -> ServerRecord | None:
        """Raises InvalidServerRecord when a record exists but cannot be read."""
        text = _read_text(self.path / "record.json")
        return None if text is None else server_record_from_json(text)

    def write_keys(self, keys: tuple[str, ...]) -> None:
        """One key per line. A key that contains a line break is left out."""
        lines = [key.strip() for key in keys if key.strip() and key.strip().isprintable()]
        write_atomically(self.run / "authorized_keys", "".join(f"{line}\n" for line in lines), mode=0o644)

    def write_jupyter(self, text: str, uid: int) -> None:
        """The spec of Jupyter. Empty: Jupyter is off. Only the dev server's user may read it: it contains a token."""
        path = self.run / "jupyter"
        if not text:
            path.unlink(missing_ok=True)
            return
        write_atomically(path, text, owner=uid if os.geteuid() == 0 else None)

    def write_banner(self, text: str) -> None:
        write_atomically(self.run / "motd", text, mode=0o644)


class StateFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def servers(self) -> Path:
        return self.path / "servers"

    @property
    def trash(self) -> Path:
        return self.path / "trash"

    @property
    def lost(self) -> Path:
        return self.path / "lost"

    def prepare(self, folder_mode: int) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        for path in (self.servers, self.path / "disks", self.trash, self.lost):
            path.mkdir(exist_ok=True)
            path.chmod(folder_mode)

    def server(self, reservation_id: ReservationId) -> ServerFolder:
        return ServerFolder(self.servers / str(reservation_id))

    def list_servers(self) -> set[ReservationId]:
        return {found for path in self.servers.iterdir() if (found := _parse_id(path.name)) is not None}

    def ensure_disk(self, disk_id: DiskId, uid: int) -> Path:
        path = self.path / "disks" / str(disk_id)
        ensure_home(path, uid)
        return path

    def open_volume(self, volume_id: str, uid: int) -> Path:
        """The volume must exist: a new empty folder in its place would hide the loss of the files."""
        found = _parse_id(volume_id)
        path = self.path / "disks" / str(found)
        if found is None or not path.is_dir() or path.is_symlink():
            raise ClusterError(f"folder of volume {volume_id} not found")
        ensure_owner(path, uid)
        return path

    def move_to_trash(self, folder: ServerFolder) -> Path | None:
        """Move a folder to the trash. Removing it from there may take long and happens later."""
        return self._move(folder, self.trash)

    def move_to_lost(self, folder: ServerFolder) -> Path | None:
        """Move a folder to lost/ and keep it: its owner is unknown, so only a person may remove it."""
        return self._move(folder, self.lost)

    def _move(self, folder: ServerFolder, where: Path) -> Path | None:
        target = where / f"{folder.path.name}.{secrets.token_hex(4)}"
        try:
            folder.path.rename(target)
        except FileNotFoundError:
            return None
        return target


def ensure_home(path: Path, uid: int) -> None:
    """Ensure a home folder that belongs to `uid`. A new one starts with the system's skeleton.

    Later calls change nothing in it but the owner of files that belong to another uid.
    """
    if not path.exists():
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        if _SKELETON.is_dir():
            shutil.copytree(_SKELETON, draft, symlinks=True)
        else:
            draft.mkdir()
        draft.chmod(0o700)
        ensure_owner(draft, uid)
        draft.rename(path)
    ensure_owner(path, uid)


def ensure_owned_folder(path: Path, uid: int) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    ensure_owner(path, uid)


def ensure_owner(path: Path, uid: int) -> None:
    """Make `uid` the owner of a tree. The owner of the top folder shows whether that is needed.

    The top comes last, so that an interrupted run is repeated. Links change their owner and are never followed.
    """
    if os.geteuid() != 0 or path.stat().st_uid == uid:
        return
    for _, folders, files, here in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            if os.stat(name, dir_fd=here, follow_symlinks=False).st_uid != uid:
                os.chown(name, uid, uid, dir_fd=here, follow_symlinks=False)
    os.chown(path, uid, uid, follow_symlinks=False)


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _parse_id(name: str) -> ReservationId | None:
    try:
        found = UUID(name)
    except ValueError:
        return None
    return ReservationId(found) if str(found) == name else None
