"""Every setting, once: its name, its default, what it means. Read from the environment; docs/operations lists them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from gpudev.places import state_dir

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Database:
    """`host` may be a folder: then PostgreSQL is reached through its unix socket in there."""

    host: str = "localhost"
    port: int = 5432
    user: str = "gpudev"
    password: str | None = None
    database: str = "gpudev"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request and one user may ask for. None: no limit."""

    default_hours: float = 8.0
    min_hours: float = 0.001
    max_hours: float = 24.0
    max_hours_with_extensions: float = 48.0
    max_queued_per_user: int | None = None
    max_gpus_per_user: int | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    preparing_deadline: timedelta = timedelta(minutes=15)
    warning_minutes: tuple[int, ...] = (30, 15, 5)
    sweep_every: timedelta = timedelta(seconds=5)
    lease_ttl: timedelta = timedelta(seconds=5)
    message_lease: timedelta = timedelta(seconds=30)
    retry_backoff: timedelta = timedelta(seconds=2)
    """After the n-th failure: this times 2^(n-1)."""
    orphan_grace: timedelta = timedelta(seconds=30)
    """How long something without a live owner is only reported before it is removed."""
    teardown_margin: timedelta = timedelta(seconds=30)
    """How long after its planned end a reservation's GPUs may still be busy being freed."""


@dataclass(frozen=True, slots=True)
class Settings:
    database: Database = Database()
    limits: Limits = Limits()
    timing: Timing = Timing()
    cluster: str = "local"
    """Where dev servers run: local (this machine)."""
    state_dir: Path = Path("~/.local/share/gpu-dev")
    """Embedded and local mode: database, disks, dev servers' folders, logs."""
    nodes_file: Path | None = None
    """Local mode: the file that describes this machine's nodes; None: detect."""
    api_host: str = "127.0.0.1"
    api_port: int = 7480
    ssh_host: str = "127.0.0.1"
    """Local mode: the address dev servers' ssh servers listen on and people connect to."""
    api_key_ttl: timedelta | None = timedelta(hours=2)
    github_url: str = "https://github.com"
    log_format: str = "json"
    """json, or console for people."""


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment. A value that cannot be read raises ValueError naming its variable."""
    env = os.environ if environ is None else environ
    return Settings(
        database=Database(
            host=env.get("POSTGRES_HOST", "localhost"),
            port=_read(env, "POSTGRES_PORT", int, 5432),
            user=env.get("POSTGRES_USER", "gpudev"),
            password=env.get("POSTGRES_PASSWORD"),
            database=env.get("POSTGRES_DB", "gpudev"),
        ),
        limits=_section(env, Limits(), "GPU_DEV_"),
        timing=_section(env, Timing(), "GPU_DEV_"),
        cluster=env.get("GPU_DEV_CLUSTER", "local"),
        state_dir=state_dir(env),
        nodes_file=_read(env, "GPU_DEV_NODES_FILE", Path, None),
        api_host=env.get("GPU_DEV_API_HOST", "127.0.0.1"),
        api_port=_read(env, "GPU_DEV_API_PORT", int, 7480),
        ssh_host=env.get("GPU_DEV_SSH_HOST", "127.0.0.1"),
        api_key_ttl=_ttl(env),
        github_url=env.get("GPU_DEV_GITHUB_URL", "https://github.com").rstrip("/"),
        log_format=env.get("GPU_DEV_LOG_FORMAT", "json"),
    )


def given(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of these variables that are settings, as they were given: for whoever starts the same server later.
    How its database is reached is not among them; neither is anything that `load` does not read."""
    noting = _Noting(environ)
    load(noting)
    return {name: environ[name] for name in sorted(noting.asked & environ.keys()) if name.startswith(_CARRIED)}


_CARRIED = ("GPU_DEV_", "API_KEY_")


class _Noting(dict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def _ttl(env: Mapping[str, str]) -> timedelta | None:
    hours = _read(env, "API_KEY_TTL_HOURS", float, 2.0)
    return None if hours == 0 else timedelta(hours=hours)


def _section(env: Mapping[str, str], default: _T, prefix: str) -> _T:
    """A section's fields from PREFIX_FIELD variables; timedeltas are given in seconds."""
    values = {
        f.name: _read(env, prefix + f.name.upper(), _reader(getattr(default, f.name)), getattr(default, f.name))
        for f in fields(default)  # type: ignore[arg-type]
    }
    return type(default)(**values)


def _reader(default: Any) -> Callable[[str], Any]:
    match default:
        case timedelta():
            return lambda text: timedelta(seconds=float(text))
        case float():
            return float
        case tuple():
            return lambda text: tuple(int(part) for part in text.split(","))
        case _:
            return int


def _read(env: Mapping[str, str], name: str, read: Callable[[str], Any], default: Any) -> Any:
    text = env.get(name)
    if text is None or text == "":
        return default
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"the environment variable {name} holds {text!r}: {error}") from error
