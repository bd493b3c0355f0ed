"""`helm test`: one reservation through the API, of the type that the chart names. It is always cancelled at the end.

Environment: the services' settings (for the key), GPU_DEV_API_URL, GPU_TYPE, PATIENCE (the value of --max-wait)."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncssh

USER = "helm-test"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def new_key() -> str:
    made = run("gpu-dev-server", "users", "key", USER, "--json")
    if made.returncode:
        made = run("gpu-dev-server", "users", "add", USER, "--json")
    if made.returncode:
        sys.exit(f"no key for {USER}: {made.stderr}")
    return json.loads(made.stdout)["api_key"]


def reserve(folder: Path, key: str) -> None:
    public = folder / "id.pub"
    asyncssh.generate_private_key("ssh-ed25519").write_public_key(str(public))
    command = ["gpu-dev", "reserve", "--gpus", "0", "--type", os.environ["GPU_TYPE"], "--hours", "0.25", "--disk", "none"]
    command += ["--key", str(public), "--max-wait", os.environ["PATIENCE"], "--yes", "--json"]
    done = run(*command, GPU_DEV_API_KEY=key)
    if done.returncode:
        sys.exit(f"the reservation did not become a dev server: {done.stdout}{done.stderr}")
    job = json.loads(done.stdout)
    if job["status"] != "active":
        sys.exit(f"the reservation is {job['status']}, not active")
    print(f"{job['job_id']} is active on {job['nodes'][0]['node']}: {job['ssh_command']}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        environment = {"GPU_DEV_API_KEY": new_key(), "HOME": name}
        os.environ["HOME"] = name
        try:
            reserve(Path(name), environment["GPU_DEV_API_KEY"])
        finally:
            ended = run("gpu-dev", "cancel", "--all", "--yes", **environment)
            print(f"cancelled: {ended.stdout.strip() or ended.stderr.strip()}")


if __name__ == "__main__":
    main()
