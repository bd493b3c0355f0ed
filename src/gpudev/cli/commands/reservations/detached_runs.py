"""Reservations started here by `gpu-dev run --detach`, so that `logs` shows their output."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpudev import paths
from gpudev.sdk.remote import openssh


def record_detached_run(env: Mapping[str, str], reservation_id: str) -> None:
    """A convenience: errors are ignored."""
    with suppress(OSError):
        folder = _runs_folder(env)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / reservation_id).touch(mode=0o600)
        openssh.remove_old_files(folder)


def is_detached_run(env: Mapping[str, str], reservation_id: str) -> bool:
    return (_runs_folder(env) / reservation_id).exists()


def _runs_folder(env: Mapping[str, str]) -> Path:
    return paths.personal_dir(env) / "runs"
