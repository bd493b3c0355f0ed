"""A whole embedded system in a home of its own, used as people use it: through the client's command line."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from gpudev.embedded import api_probe
from support.polling import eventually
from support.ports import free_port
from support.process_table import command_lines
from support.system.warm_programs import CLIENT, SERVER, run_program

_T = TypeVar("_T")


@dataclass
class System:
    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, home: Path, *, nodes: str | None = None, environment: dict[str, str] | None = None) -> "System":
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "XDG_", "AWS_"))}
        made = {**kept, "HOME": str(home), "GPU_DEV_HOME": str(home / "state"), **(environment or {})}
        system = cls(home, made)
        arguments = ["--port", str(free_port())]
        if nodes is not None:
            (home / "nodes.toml").write_text(nodes)
            arguments += ["--nodes", str(home / "nodes.toml")]
        system.up(*arguments)
        return system

    def up(self, *arguments: str) -> None:
        self._arguments = arguments
        self.run("up", *arguments)

    def stop(self) -> None:
        self.run("down")

    def run(self, *arguments: str, code: int | None = 0, **changes: str) -> subprocess.CompletedProcess[str]:
        """The client as a process; its exit code is part of the expectation (None: any)."""
        done = run_program(CLIENT, arguments, {**self.environment, **changes}, timeout=120)
        story = f"gpu-dev {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code is None or done.returncode == code, story
        assert "Traceback" not in done.stderr + done.stdout
        return done

    @staticmethod
    def parse(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def ask(self, *arguments: str, **changes: str) -> dict[str, Any]:
        return self.parse(self.run(*arguments, "--json", **changes))

    def server(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = run_program(SERVER, arguments, self.environment)
        done.check_returncode()
        return done

    def add_user(self, name: str) -> str:
        """Another person on this machine, who may be there from a first try; answers a key of theirs."""
        done = run_program(SERVER, ("users", "add", name, "--json"), self.environment)
        if done.returncode != 0:
            done = self.server("users", "key", name, "--json")
        key: str = json.loads(done.stdout)["api_key"]
        return key

    def ssh_options(self, job: dict[str, Any]) -> list[str]:
        known = self.home / f"known-{job['job_id']}"
        known.write_text(f"e2e {job['ssh_host_key']}\n")
        return [
            "-F", "none", "-o", "HostKeyAlias=e2e", "-o", f"UserKnownHostsFile={known}",
            "-o", "GlobalKnownHostsFile=none", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes",
            "-i", str(self.home / ".gpu-dev" / "id_ed25519"),
        ]  # fmt: skip

    def ssh(self, job: dict[str, Any], *options: str) -> list[str]:
        target = f"{job['ssh_user']}@{job['node_ip']}"
        return ["ssh", *self.ssh_options(job), "-p", str(job["node_port"]), *options, target]

    def pid(self, part: str) -> int:
        return int((self.home / "state" / "run" / f"{part}.pid").read_text().split()[0])

    def kill(self, part: str) -> None:
        """kill -9, and wait until the supervisor has started another."""
        before = self.pid(part)
        os.kill(before, signal.SIGKILL)
        eventually(lambda: self.find_pid(part) not in (None, before), f"{part} was not started again")

    def find_pid(self, part: str) -> int | None:
        """None while it is between two lives."""
        try:
            return self.pid(part)
        except (FileNotFoundError, IndexError):
            return None

    def pause(self, part: str) -> None:
        """Stop a part with all its processes, as a machine that hangs would."""
        parent = psutil.Process(self.pid(part))
        for process in (parent, *parent.children(recursive=True)):
            process.suspend()

    def resume(self, part: str) -> None:
        parent = psutil.Process(self.pid(part))
        for process in (*parent.children(recursive=True), parent):
            process.resume()

    def ready(self) -> bool:
        return self._says_yes("/health/ready")

    def live(self) -> bool:
        return self._says_yes("/health/live")

    def _says_yes(self, path: str) -> bool:
        url = json.loads((self.home / "state" / "run" / "system.json").read_text())["api_url"]
        answer = api_probe.probe(url + path)
        return answer is not None and answer.status == 200

    def processes_with(self, text: str) -> list[int]:
        return [pid for pid, words in command_lines() if text in words.replace("\0", " ")]

    def wait_for(self, job_id: str, status: str, **changes: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            job = self.ask("status", job_id, **changes)
            return job if job["status"] == status else None

        return eventually(look, f"{job_id} did not become {status}")

    def wait_until_released(self, job_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            job = self.ask("status", job_id)
            return job if job["released_at"] is not None else None

        return eventually(look, f"{job_id} was not released")
