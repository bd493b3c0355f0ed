"""Two GPUs for one block: reserve, run commands, release."""

from gpudev import CommandFailed, GpuDev


def main() -> None:
    client = GpuDev()
    with client.reserve(gpus=2, hours=1, disk="none") as server:
        print(server.run("echo $CUDA_VISIBLE_DEVICES").stdout.strip())
        # A list of arguments is passed unchanged.
        print(server.run(["printf", "%s\n", "it's $HOME"]).stdout.strip())
        try:
            server.run("echo 'out of memory' >&2; exit 1")
        except CommandFailed as failure:
            print(f"exit code {failure.exit_code}: {failure.stderr.strip()}")
    print(client.jobs.get(server.id).status)


if __name__ == "__main__":
    main()
