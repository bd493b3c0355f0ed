"""Options of a reservation as keyword arguments, and the request built from them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.remote import ssh_keys
from gpudev.wire.reservations import SubmitRequest


class ReserveOptions(TypedDict, total=False):
    """All are optional."""

    gpus: int
    """Number of GPUs, by default 1; 0 for a CPU type."""
    gpu_type: str | None
    """GPU type such as "h100"; by default the only type that has nodes."""
    hours: float | None
    """Duration from when the dev server is ready; by default set by the server."""
    name: str | None
    """Name of the reservation."""
    disk: str | None
    """Disk to mount as /home/dev; "none": scratch space; by default your disk `default`, unless another of your live
    reservations has it (then the reservation's `scratch_reason` says so)."""
    image: str | None
    """Container image (Kubernetes)."""
    github_user: str | None
    """GitHub user whose public keys may log in; by default the setting `github_user`."""
    key_file: str | Path | None
    """File with public keys that may log in, instead of GitHub's."""
    ssh_public_keys: Sequence[str] | None
    """Public keys that may log in, instead of GitHub's. On one machine your own keys are found automatically."""
    max_wait_hours: float | None
    """Cancel the reservation if it has not started after this many hours."""
    environment: Mapping[str, str] | None
    """Environment variables for every session."""
    dotfiles: str | None
    """Git repository to clone to ~/.dotfiles and install."""
    startup_script: str | None
    """Text of a script to run once the dev server is ready."""


def check_options(options: ReserveOptions) -> ReserveOptions:
    """Raises TypeError for an unknown keyword, as Python does."""
    for name in options:
        if name not in ReserveOptions.__annotations__:
            import difflib  # slow to load

            close = difflib.get_close_matches(name, ReserveOptions.__annotations__, 1)
            raise TypeError(f"unknown option {name!r}{f' (did you mean {close[0]!r}?)' if close else ''}")
    return options


def request_from_options(session: ClientSession, options: ReserveOptions) -> SubmitRequest:
    """Raises Rejected if no public key is known."""
    keys, user = options.get("ssh_public_keys"), options.get("github_user")
    if keys is None:
        file = options.get("key_file")
        user, found = ssh_keys.choose_login_keys(session, user, Path(file) if file is not None else None)
        keys = found
    environment = options.get("environment")
    return SubmitRequest(
        gpu_count=options.get("gpus", 1),
        gpu_type=options.get("gpu_type"),
        duration_hours=options.get("hours"),
        github_user=user,
        ssh_public_keys=None if keys is None else list(keys),
        name=options.get("name"),
        image=options.get("image"),
        disk_name=options.get("disk"),
        max_wait_hours=options.get("max_wait_hours"),
        environment=None if environment is None else dict(environment),
        dotfiles=options.get("dotfiles"),
        startup_script=options.get("startup_script"),
    )
