"""The owner's credentials: an API key and a separate ssh key. `~/.ssh` is never changed."""

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
    """The owner's stored key if it still works, otherwise a new one."""
    path = paths.credentials_file(os.environ)
    stored = find_credential(path, api_url)
    if stored is not None and api_probe.is_key_accepted(api_url, stored.api_key):
        return stored
    fresh = _issue_key(paths.os_username(), environment)
    store_credential(path, api_url, fresh)
    return fresh


def ensure_ssh_key() -> Path:
    """Creates the key pair that `gpu-dev` uses besides the user's own keys. Returns the path of the public key."""
    import asyncssh  # slow to import, and needed only once

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
        response = json.loads(done.stdout)
        return Credential(response["api_key"], response["username"], response.get("expires_at"))
    except (ValueError, KeyError) as error:
        raise Unavailable(f"unexpected output of `gpu-dev-server users ensure-owner` ({error})") from error


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Atomic: a partly written key would be kept for ever."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    fresh.replace(path)
