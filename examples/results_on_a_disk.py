"""Persistent files: one reservation writes to a disk, the next one reads from it."""

import tempfile
from pathlib import Path

from gpudev import GpuDev, NotFound

DISK = "results"


def main() -> None:
    client = GpuDev()
    try:
        client.disks.get(DISK)
    except NotFound:
        client.disks.create(DISK, size_gb=1, on_change=lambda operation: print(operation.step))
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        project.mkdir()
        (project / "train.sh").write_text("echo accuracy 0.93 >> ../log.txt\n")
        with client.reserve(gpus=1, hours=1, disk=DISK) as server:
            where = server.copy_folder(project)
            server.run(f"cd {where} && sh train.sh")
    # The disk is free for the next reservation once its snapshot is taken.
    client.jobs.wait_until_released(server.id, timeout=600)
    with client.reserve(gpus=1, hours=1, disk=DISK) as server:
        print(server.run("tail -n 1 log.txt").stdout.strip())


if __name__ == "__main__":
    main()
