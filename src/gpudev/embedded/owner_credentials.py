"""The owner's credentials: an API key and an ssh key of our own. `~/.ssh` is never touched."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpudev import paths
from gpudev.credentials_file import Credential, find_credential, store_credential
from gpudev.domain.errors import Unavailable
from gpudev.embedded import api_probe
from gpudev.embedded.system import server_command


def ensure_owner_key(api_url: str, environment: Mapping[str, str]) -> Credential:
    """The owner's key for this system: the one that is there if it still works, else a new one."""
    path = paths.credentials_file(os.environ)
    present = find_credential(path, api_url)
    if present is not None and api_probe.is_key_accepted(api_url, present.api_key):
        return present
    fresh = _issue_key(paths.os_username(), environment)
    store_credential(path, api_url, fresh)
    return fresh


def ensure_ssh_key() -> Path:
    """The public half of the key that `gpu-dev` uses besides the person's own ones. Returns its path."""
    import asyncssh  # takes a while to load, and is needed once in a lifetime

    private = paths.private_key_file(os.environ)
    public = private.with_name(private.name + ".pub")
    if private.exists() and public.exists():
        return public
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if private.exists():
        key = asyncssh.read_private_key(private)
    else:
        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"gpu-dev {paths.os_username()}")
        _write_new(private, key.export_private_key(), 0o600)
    _write_new(public, key.export_public_key(), 0o644)
    return public


def _issue_key(name: str, environment: Mapping[str, str]) -> Credential:
    done = subprocess.run(
        server_command("users", "ensure-owner", name, "--json"),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable((done.stderr or done.stdout).strip()[-500:] or f"exit code {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        return Credential(answer["api_key"], answer["username"], answer.get("expires_at"))
    except (ValueError, KeyError) as error:
        raise Unavailable(f"the server answered something unexpected about the key ({error})") from error


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all: half a key would be kept for ever."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    fresh.replace(path)
