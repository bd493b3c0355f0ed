"""`python -m support.aws_stub 10000 50000`: a full account in a process of its own, for measuring. Ends with stdin."""

import asyncio
import json
import sys
from datetime import UTC, datetime

from support.clouds.aws_stub.server import AwsStub


async def serve(volumes: int, snapshots: int) -> None:
    stub = AwsStub()
    if volumes:
        stub.account.fill(volumes, snapshots, since=datetime(2026, 1, 1, tzinfo=UTC))
    await stub.start()
    print(json.dumps(stub.environment()), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await stub.close()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:3])))
