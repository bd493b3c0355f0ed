"""Wait for GPUs with progress: queue position, expected start, steps of the preparation."""

import sys

from gpudev import GpuDev, JobView, NotInTime


def show(job: JobView) -> None:
    if job.eta is not None and job.eta.expected is not None:
        print(f"{job.status}: position {job.queue_position}, expected {job.eta.expected:%H:%M}, {job.wait_reason}")
    else:
        print(f"{job.status}: {job.step or ('it is ready' if job.status == 'active' else 'about to be planned')}")


def main() -> None:
    client = GpuDev()
    for offer in client.cluster.availability():
        if offer.total_cluster_gpus:
            print(f"{offer.gpu_type}: {offer.available_gpus} of {offer.total_cluster_gpus} free")
    try:
        with client.reserve(gpus=1, hours=0.5, disk="none", on_change=show, timeout=600) as server:
            print(f"ready: {server.job.ssh_command}")
    except NotInTime:
        sys.exit("not today: the reservation is released again")


if __name__ == "__main__":
    main()
