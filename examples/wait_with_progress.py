"""Wait for GPUs and show progress: queue position, expected start, start-up steps."""

import sys

from gpudev import GpuDev, JobView, NotInTime


def show(job: JobView) -> None:
    if job.eta is not None and job.eta.expected is not None:
        print(f"{job.status}: position {job.queue_position}, expected {job.eta.expected:%H:%M}, {job.wait_reason}")
    else:
        print(f"{job.status}: {job.step or ('ready' if job.status == 'active' else 'not planned yet')}")


def main() -> None:
    client = GpuDev()
    for offer in client.cluster.availability():
        if offer.total_cluster_gpus:
            print(f"{offer.gpu_type}: {offer.available_gpus} of {offer.total_cluster_gpus} free")
    try:
        with client.reserve(gpus=1, hours=0.5, disk="none", on_change=show, timeout=600) as server:
            print(f"ready: {server.job.ssh_command}")
    except NotInTime:
        sys.exit("timed out; the reservation was released")


if __name__ == "__main__":
    main()
