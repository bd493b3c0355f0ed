"""Start a long command and disconnect; another program, or `gpu-dev logs`, reads its output later."""

import uuid

from gpudev import GpuDev


def begin(client: GpuDev) -> str:
    # A second submit with the same key returns the same reservation, for 7 days and even if it has ended by then. So
    # each run of this program has its own key.
    job = client.jobs.submit(gpus=1, hours=2, disk="none", name="long", idempotency_key=f"long-run-{uuid.uuid4()}")
    server = client.server(job.job_id)
    server.start("for step in 1 2 3; do echo step $step; sleep 0.1; done")
    return server.id


def come_back(client: GpuDev, job_id: str) -> None:
    server = client.server(job_id)
    done = server.output(wait=True)
    print(done.stdout.strip().splitlines()[-1], "and exit code", done.exit_code)
    for event in client.jobs.events(job_id):
        print(event.kind)
    server.cancel()


def main() -> None:
    job_id = begin(GpuDev())
    come_back(GpuDev(), job_id)


if __name__ == "__main__":
    main()
