"""`python -m support.gcp_stub 10000 50000`: a full project in a process of its own, for measuring. Ends with stdin."""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta

from support.clouds.gcp_stub.project import Project
from support.clouds.gcp_stub.server import GcpStub


def filled(disks: int, snapshots: int) -> Project:
    project, since = Project(), datetime(2026, 1, 1, tzinfo=UTC)
    paths = [
        project.put_disk(
            project.zones[number % len(project.zones)],
            f"disk-{number:06}",
            size_gb=100,
            labels={"gpu-dev-user": f"user-{number % 500}", "disk-name": f"disk-{number}", "team": "compilers"},
            created_at=since + timedelta(seconds=number),
        )
        for number in range(disks)
    ]
    for number in range(snapshots):
        disk = project.disks[paths[number % disks]]
        moment = since + timedelta(hours=1, seconds=number)
        project.put_snapshot(f"snapshot-{number:06}", disk, labels=disk["labels"], created_at=moment)
    return project


async def serve(disks: int, snapshots: int) -> None:
    stub = GcpStub(filled(disks, snapshots))
    await stub.start()
    print(json.dumps({"project": stub.project.name, "endpoint": stub.address}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await stub.close()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:3])))
