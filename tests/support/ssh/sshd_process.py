"""The SSH server of dev servers on one machine, forked from a warm process (see sshd_zygote.py)."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncssh

from gpudev.adapters.local.sshd.terminal_messages import TerminalMessage, append_message
from support.ssh.ssh_server import SshServer


@dataclass
class SshdServer(SshServer):
    messages: Path
    late_imports: Path

    @property
    def uid(self) -> int:
        return os.geteuid()

    def inside(self, path: Path) -> str:
        return str(path)

    def outside(self, path: str) -> Path:
        return Path(path)

    def set_authorized_keys(self, text: str) -> None:
        self.authorized_keys.write_text(text)

    def send_message(self, text: str, greets_for: timedelta = timedelta(hours=1)) -> None:
        append_message(str(self.messages), TerminalMessage(text, datetime.now(UTC) + greets_for))


StartServer = Callable[..., SshdServer]
"""Takes changes to the configuration."""


class WarmProcess:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sshd_zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def start_server(self, home: Path, folder: Path, changes: dict[str, Any]) -> SshdServer:
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        user_key = asyncssh.generate_private_key("ssh-ed25519")
        paths = {name: folder / name for name in ("key", "known_hosts", "authorized_keys", "messages", "late_imports")}
        paths["key"].write_bytes(user_key.export_private_key())
        paths["key"].chmod(0o600)
        paths["authorized_keys"].write_bytes(user_key.export_public_key())
        settings = {
            "host_key": host_key.export_private_key().decode(),
            "authorized_keys_path": str(paths["authorized_keys"]),
            "home": str(home),
            "messages_path": str(paths["messages"]),
            "late_imports": str(paths["late_imports"]),
            "environment": {"GPU_DEV_TEST": "yes", "TMPDIR": str(folder)},
        }
        answer = self._ask({**settings, **changes})
        public = host_key.export_public_key().decode()
        paths["known_hosts"].write_text(f"[127.0.0.1]:{answer['port']} {public}")
        return SshdServer(answer["port"], answer["pid"], home, folder, **paths)

    def stop_server(self, server: SshdServer) -> None:
        self._ask({"stop": server.pid})

    def close(self) -> None:
        self._process.communicate(timeout=20)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
