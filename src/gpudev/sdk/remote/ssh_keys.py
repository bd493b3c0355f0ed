"""Public keys that may log in to a new dev server: from GitHub, a file, or the user's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpudev import paths
from gpudev.domain.access.ssh_keys import MAX_KEYS, parse_public_key, usable_public_keys
from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.errors import LocalError, Rejected, UsageError

_LARGEST_FILE = 64 * 1024


class LoginKeys(NamedTuple):
    """One of the two."""

    github_user: str | None = None
    public_keys: tuple[str, ...] | None = None


def choose_login_keys(session: ClientSession, github_user: str | None, key_file: Path | None) -> LoginKeys:
    if github_user and key_file:
        raise UsageError("--github-user and --key are mutually exclusive")
    if key_file:
        return LoginKeys(public_keys=_read_key_file(key_file))
    user = github_user or session.preferences.github_user
    if user:
        return LoginKeys(github_user=user)
    if session.address.is_local and (keys := find_own_keys(session.env)):
        return LoginKeys(public_keys=keys)
    raise Rejected(
        "no public key is known, so nobody could log in to the dev server",
        "Set `gpu-dev config set github_user NAME`, or give a public key with --key FILE"
        + (" (`ssh-keygen -t ed25519` creates one that is found automatically)" if session.address.is_local else ""),
        code="no_public_key",
    )


def find_own_keys(env: Mapping[str, str]) -> tuple[str, ...]:
    """The public keys of this user; invalid ones are skipped."""
    lines: list[str] = []
    for path in list_own_key_files(env):
        try:
            lines += _read_text(path).splitlines()
        except OSError:
            continue
    return usable_public_keys(lines)[:MAX_KEYS]


def list_own_key_files(env: Mapping[str, str]) -> list[Path]:
    """gpu-dev's own key first, then those in ~/.ssh."""
    own = paths.private_key_file(env)
    try:
        others = sorted((paths.home_dir(env) / ".ssh").glob("*.pub"))
    except OSError:
        others = []
    return [own.with_name(f"{own.name}.pub"), *others]


def _read_key_file(path: Path) -> tuple[str, ...]:
    try:
        lines = [line for line in _read_text(path).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from error
    try:
        keys = tuple(dict.fromkeys(parse_public_key(line) for line in lines))
    except ValueError as error:
        raise UsageError(f"{path} holds no public key: {error}", "Use e.g. ~/.ssh/id_ed25519.pub") from error
    if not keys:
        raise UsageError(f"{path} holds no public key", "Use e.g. ~/.ssh/id_ed25519.pub")
    return keys


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LARGEST_FILE).decode("utf-8", "replace")
