"""Options of a reservation as keywords, and the request built from them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.remote import ssh_keys
from gpudev.wire.reservations import SubmitRequest


class ReserveOptions(TypedDict, total=False):
    """All may be left out."""

    gpus: int
    """How many GPUs (1); 0 for a CPU type."""
    gpu_type: str | None
    """Such as "h100"; without it, the only type that has nodes."""
    hours: float | None
    """For how long, from when the dev server is ready; without it, as long as the server gives."""
    name: str | None
    """A name for people."""
    disk: str | None
    """The disk that becomes /home/dev; "none": scratch space; without it, your disk `default` if it is free."""
    image: str | None
    """Container image (Kubernetes)."""
    github_user: str | None
    """Whose published GitHub keys may log in; without it, the setting `github_user`."""
    key_file: str | Path | None
    """File of public keys that may log in, instead of GitHub's."""
    ssh_public_keys: Sequence[str] | None
    """Public keys that may log in, instead of GitHub's. On one machine your own are found by themselves."""
    max_wait_hours: float | None
    """Cancel it if it has not started after so many hours."""
    environment: Mapping[str, str] | None
    """Variables for every session there."""
    dotfiles: str | None
    """Git repository that is cloned to ~/.dotfiles and installed."""
    startup_script: str | None
    """Text of a program that is run there once it is ready."""


def check_options(options: ReserveOptions) -> ReserveOptions:
    """Raises TypeError, as for every keyword that is not there: what is left out silently is not what was meant."""
    for name in options:
        if name not in ReserveOptions.__annotations__:
            import difflib  # slow to load

            close = difflib.get_close_matches(name, ReserveOptions.__annotations__, 1)
            raise TypeError(f"'{name}' is nothing that can be asked for{f'; {close[0]!r} is' if close else ''}")
    return options


def request_from_options(session: ClientSession, options: ReserveOptions) -> SubmitRequest:
    """Raises Refused when nobody could log in."""
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
