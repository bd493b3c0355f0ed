"""`python one_snapshot.py STATE [VOLUME]`: make a volume, or take a snapshot of one and tell how it went, as JSON."""

import asyncio
import json
import sys
from pathlib import Path
from uuid import uuid4

from gpudev.adapters.local.cloud import LocalCloud
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import SnapshotState


async def main(state_dir: Path, volume_id: str) -> dict[str, str | None]:
    cloud = LocalCloud(state_dir, SystemClock())
    await cloud.start()
    try:
        if not volume_id:
            volume = await cloud.ensure_volume(str(uuid4()), size_gb=1, zone="here", tags={})
            return {"volume_id": volume.volume_id}
        snapshot = await cloud.ensure_snapshot(str(uuid4()), volume_id, {})
        async with asyncio.timeout(30):
            while snapshot.state is SnapshotState.PENDING:
                await asyncio.sleep(0.01)
                found = await cloud.find_snapshot(snapshot.snapshot_id)
                assert found is not None
                snapshot = found
        return {"state": snapshot.state.value, "lacks": snapshot.lacks}
    finally:
        await cloud.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))))
