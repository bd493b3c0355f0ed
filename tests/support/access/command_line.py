"""The command line of somebody at home somewhere, while the API runs in this very process."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.system.warm_programs import CLIENT, run_program


@dataclass
class Cli:
    home: Path
    api_url: str

    async def start(self, *arguments: str, **env: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpudev.cli", *arguments),
            env=self._environment(**env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str, code: int = 0, **env: str) -> str:
        """What it said on both ways."""
        done = await asyncio.to_thread(run_program, CLIENT, arguments, self._environment(**env), timeout=90)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        return said

    def _environment(self, **env: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "GPU_DEV_API_URL": self.api_url, **env}

    @property
    def kept(self) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads((self.home / ".gpu-dev" / "credentials").read_text())[self.api_url]
        return stored

    def change(self, **changes: Any) -> None:
        path = self.home / ".gpu-dev" / "credentials"
        path.write_text(json.dumps({self.api_url: {**self.kept, **changes}}))
