"""`python control_plane.py STATE_DIR MODE`: a control plane of its own that starts the dev servers whose records it
reads from standard input, says so when they are ready, and stays until it is killed."""

import asyncio
import sys
from pathlib import Path

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.servers.state_folder import server_record_from_json
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase
from support.local.local_world import NODES


async def main(state_dir: str, mode: str) -> None:
    cluster = LocalCluster(Path(state_dir), NODES, SystemClock(), mode=IsolationMode(mode))
    await cluster.start()
    print("started", flush=True)
    for line in sys.stdin:
        spec = server_record_from_json(line).spec
        await cluster.ensure_server(spec)
        print("asked", flush=True)
        changes = cluster.changes()
        while (await cluster.observe()).servers[spec.reservation_id].phase is ServerPhase.STARTING:
            await anext(changes)
        print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
