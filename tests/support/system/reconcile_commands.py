"""`gpu-dev-server` commands run as processes, and what they find and leave behind."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudev.adapters.postgres.stores import Stores
from support.clouds.aws_stub import AwsStub
from support.paper_cloud import BEGINNING
from support.system.warm_programs import SERVER, run_program


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


class Operator:
    """Runs commands on a server whose database and cloud these are."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *SERVER.command,
            *arguments,
            env=dict(self.environment),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str) -> Done:
        done = await asyncio.to_thread(run_program, SERVER, arguments, self.environment)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


def give(stub: AwsStub, owner: str = "ada", disk: str = "work", **more: Any) -> str:
    tags = {"gpu-dev-user": owner, "disk-name": disk}
    return stub.account.give_volume(tags, created_at=BEGINNING, **more).volume_id


async def columns(stores: Stores, gpu_type: str = "h100") -> dict[str, Any]:
    async with stores.pool.acquire() as connection:
        row = await connection.fetchrow("SELECT * FROM gpu_types WHERE gpu_type = $1", gpu_type)
    assert row is not None
    return dict(row)
