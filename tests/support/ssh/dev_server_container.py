"""Real dev servers: the compiled program as the first process of a small container (root), or as somebody ordinary."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import IO

import asyncssh

from support.polling import eventually
from support.ports import free_port
from support.ssh.ssh_server import Completed, SshServer

IS_ROOT = os.geteuid() == 0
NOBODY = 65534
DEV = 1000
ENTER = Path(__file__).with_name("enter-container.sh")
CONTAINED = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", str(ENTER)]
"""What runs a command, given after a root folder, as the first process of a container."""
CONTAINER, ORDINARY = "container", "ordinary user"
CONTAINER_ENVIRONMENT = {
    "PATH": "/opt/image/bin:/usr/local/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/image/lib",
    "NVIDIA_VISIBLE_DEVICES": "GPU-1",
    "CUDA_VERSION": "12.9",
    "HF_HOME": "/workspace/hf",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_PORT_443_TCP": "tcp://10.0.0.1:443",
    "POSTGRES_PORT": "tcp://10.0.0.2:5432",
    "HOME": "/root",
}


@dataclass
class DevServer(SshServer):
    mode: str
    root: Path
    config: Path
    log: Path
    program: Path
    process: subprocess.Popen[bytes] = field(repr=False)
    milliseconds_to_banner: float = 0.0

    def inside(self, path: Path) -> str:
        return str(path) if self.mode == ORDINARY else f"/{path.relative_to(self.root)}"

    def outside(self, path: str) -> Path:
        return self.root / path[1:]

    @property
    def uid(self) -> int:
        if self.mode == CONTAINER:
            return DEV
        return NOBODY if IS_ROOT else os.geteuid()

    def tell(self, text: str, *options: str) -> Completed:
        """As `kubectl exec` into the container would."""
        command = [*_as_server(self.mode), str(self.program), "tell", "--port", str(self.port), *options]
        return subprocess.run(command, input=text.encode(), capture_output=True, timeout=20, check=False)

    def send_message(self, text: str, greets_for: timedelta = timedelta(hours=1)) -> None:
        done = self.tell(text, "--greets-for", f"{greets_for.total_seconds():.0f}s")
        assert done.returncode == 0, done.stderr

    def set_authorized_keys(self, text: str) -> None:
        """As a Secret's update does: another file in its place."""
        fresh = self.authorized_keys.with_name("fresh")
        fresh.write_text(text)
        os.chown(fresh, self.config.stat().st_uid, self.config.stat().st_gid)
        fresh.rename(self.authorized_keys)

    def ready(self) -> bool:
        command = [str(self.program), "ready", "--port", str(self.port)]
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0

    def stop(self) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, 9)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self.process.kill()
        self.process.wait()


class Builder:
    """One dev server's folders, before it is started: a test may change them."""

    def __init__(self, program: Path, mode: str, *, bare: bool = False) -> None:
        self.mode = mode
        self.started: list[DevServer] = []
        self.top = Path(tempfile.mkdtemp(prefix="gdk"))
        self.top.chmod(0o755)
        self.root = self.top / "root" if mode == CONTAINER else Path("/")
        inner = self.root if mode == CONTAINER else self.top
        self.home = inner / "home" / "dev" if mode == CONTAINER else inner / "home"
        self.config = inner / "gpudev" / "config"
        self.folder = inner / "tmp"
        self.bin = inner / "gpudev" / "bin"
        self.config.mkdir(parents=True)
        subprocess.run([program, "install", "--to", self.bin], check=True, capture_output=True)
        self.program = self.bin / "gpudev-devserver"
        if mode == ORDINARY:
            self.home.mkdir()
        elif bare:
            _make_bare_root(self.root)
        else:
            _make_root(self.root)
        if not bare:
            self.folder.mkdir(exist_ok=True)
            self.folder.chmod(0o1777)
        self.port = free_port()
        self._write_keys()

    def _write_keys(self) -> None:
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        user_key = asyncssh.generate_private_key("ssh-ed25519")
        self.key, self.known_hosts = self.top / "key", self.top / "known_hosts"
        self.key.write_bytes(user_key.export_private_key())
        self.key.chmod(0o600)
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key.export_public_key().decode()}")
        self.write("host_key", host_key.export_private_key().decode())
        self.write("authorized_keys", user_key.export_public_key().decode())
        self.write("environment", "GPU_DEV_TEST=yes\nGPU_DEV_NAME=a $(b) 'c' = d\n")

    def write(self, name: str, text: str) -> None:
        path = self.config / name
        path.unlink(missing_ok=True)  # an ordinary user could not write to it again
        path.write_text(text)
        path.chmod(0o400)

    def start(self, *options: str, environment: Mapping[str, str] = CONTAINER_ENVIRONMENT) -> DevServer:
        """`options` are those of `serve`."""
        if self.mode == ORDINARY and IS_ROOT:
            for path in [self.top, *self.top.rglob("*")]:
                os.chown(path, NOBODY, NOBODY)
            os.chown(self.key, 0, 0)
        log = self.top / "log"
        with log.open("wb") as output:
            process = self._spawn(options, environment, output)
        server = DevServer(
            port=self.port,
            pid=process.pid,
            home=self.home,
            folder=self.folder,
            key=self.key,
            known_hosts=self.known_hosts,
            authorized_keys=self.config / "authorized_keys",
            mode=self.mode,
            root=self.root,
            config=self.config,
            log=log,
            program=self.program,
            process=process,
        )
        self.started.append(server)
        began = time.monotonic()
        _wait_for_banner(server)
        server.milliseconds_to_banner = (time.monotonic() - began) * 1000
        server.pid = _server_pid(process.pid) if self.mode == CONTAINER else process.pid
        return server

    def _spawn(
        self, options: tuple[str, ...], environment: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        serve = ["serve", "--port", str(self.port), "--listen", "127.0.0.1", *options]
        if self.mode == CONTAINER:
            command = [*CONTAINED, str(self.root)]
            if not (self.root / ".bare").exists():  # which has no env
                command += ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())]
            command += ["/gpudev/bin/gpudev-devserver", *serve]
            return subprocess.Popen(command, stdout=output, stderr=output, env={"PATH": os.environ["PATH"]})
        command = [*_as_server(self.mode), str(self.program), *serve]
        command += ["--config", str(self.config), "--home", str(self.home)]
        given = {**environment, "PATH": os.environ["PATH"]}
        return subprocess.Popen(command, stdout=output, stderr=output, env=given, cwd="/")

    def remove(self) -> None:
        for server in self.started:
            server.stop()
        shutil.rmtree(self.top, ignore_errors=True)


@cache
def can_contain() -> bool:
    """Whether we are root and may mount: in many containers root may not."""
    probe = ["unshare", "--mount", "--pid", "--fork", "sh", "-c"]
    mounting = "mount --make-rprivate / && mount -t proc proc /proc && mount -t devpts -o newinstance devpts /dev/pts"
    return IS_ROOT and subprocess.run([*probe, mounting], capture_output=True, check=False).returncode == 0


def _as_server(mode: str) -> list[str]:
    if mode == ORDINARY and IS_ROOT:
        return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return []


def _make_root(root: Path) -> None:
    """What Debian's images have, as far as it matters: also a first user whose number is the one we want."""
    etc = root / "etc"
    for folder in ("etc/skel/.config", "etc/profile.d", "etc/sudoers.d", "run", "root", "opt/image/bin", "workspace"):
        (root / folder).mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000:U:/home/ubuntu:/bin/bash\n")
    (etc / "group").write_text("root:x:0:\ntty:x:5:\nubuntu:x:1000:\nrender:x:992:dev\nadm:x:4:ubuntu\n")
    (etc / "shadow").write_text("root:*:19000:0:99999:7:::\n")
    (etc / "shadow").chmod(0o640)
    (etc / "hosts").write_text("127.0.0.1\tlocalhost\n")
    (etc / "profile").write_text(
        "PATH=/usr/local/bin:/usr/bin:/bin\nexport PATH\nfor i in /etc/profile.d/*.sh; do . $i; done\n"
    )
    (etc / "skel" / ".bashrc").write_text("# from the skeleton\n")
    (etc / "skel" / ".config" / "deep").write_text("deep\n")
    shutil.copy("/etc/ld.so.cache", etc / "ld.so.cache")
    program = root / "opt" / "image" / "bin" / "of-the-image"
    program.write_text("#!/bin/sh\necho the image has it\n")
    program.chmod(0o755)


def _make_bare_root(root: Path) -> None:
    """A shell and nothing else: no /etc, no /tmp, no /home."""
    (root / ".bare").touch()
    (root / "bin").mkdir()
    shutil.copy(Path("/bin/sh").resolve(), root / "bin" / "sh")
    shutil.copy(Path("/bin/cat").resolve(), root / "bin" / "cat")
    told = subprocess.run(["ldd", "/bin/sh", "/bin/cat"], capture_output=True, text=True, check=True).stdout
    for word in told.split():
        if word.startswith("/") and not word.endswith(":"):
            (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, root / word[1:])


def _wait_for_banner(server: DevServer) -> None:
    def answers() -> bool:
        assert server.process.poll() is None, server.log.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            return connection.recv(8) == b"SSH-2.0-"
        return False

    eventually(answers)


def _server_pid(unshare: int) -> int:
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
