"""The embedded system's processes: PostgreSQL, migrations, processor, proxy, API, and their environment.

As a program it is the supervisor of these processes, and reports its steps on the given file descriptor.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType

from gpudev import rlimits
from gpudev import settings as settings_module
from gpudev.domain.addresses import parse_bind_address
from gpudev.embedded import api_probe
from gpudev.embedded.layout import Layout
from gpudev.embedded.listen_options import listen_environment
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.embedded.supervised_processes import ChildSpec, StartupStep, SupervisedService, SupervisedTask
from gpudev.log_output import LineLoggerFactory
from gpudev.settings import API_ROLE, PROCESSOR_ROLE, Settings

POSTGRES, MIGRATIONS, PROCESSOR, PROXY, API = "postgres", "migrations", "processor", "proxy", "api"
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
SUPERVISOR_MODULE = "gpudev.embedded.system"
"""This module's name."""
PART_NAMES = (POSTGRES, MIGRATIONS, PROCESSOR, PROXY, API)
"""In the order of their start."""


def server_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpudev.main", *arguments]


def open_postgres(layout: Layout) -> EmbeddedPostgres:
    return EmbeddedPostgres(layout.postgres_data, log_file=layout.log_file(POSTGRES))


def part_environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of every process: always the embedded database, whatever the caller's environment names."""
    database = open_postgres(Layout(settings.state_dir)).database_settings()
    environment = {
        **settings_module.on_this_machine(inherited),
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
        "GPU_DEV_HOME": str(settings.state_dir),
        "GPU_DEV_API_HOST": settings.api_host,
        "GPU_DEV_API_PORT": str(settings.api_port),
        "PYTHONUNBUFFERED": "1",
        **listen_environment(settings),
    }
    environment.pop("POSTGRES_PASSWORD", None)
    if settings.nodes_file is not None:
        environment["GPU_DEV_NODES_FILE"] = str(settings.nodes_file)
    return environment


def startup_parts(settings: Settings, inherited: Mapping[str, str]) -> list[SupervisedService | SupervisedTask]:
    layout = Layout(settings.state_dir)
    postgres = open_postgres(layout)
    common = part_environment(settings, inherited)

    def part(name: str, *arguments: str, role: str | None = None, own: Mapping[str, str] = NO_ENVIRONMENT) -> ChildSpec:
        return ChildSpec(
            name=name,
            command=lambda: server_command(*arguments),
            environment={**common, "POSTGRES_USER": role, **own} if role else common,
            pid_file=layout.pid_file(name),
            log_file=layout.log_file(name),
        )

    def prepare_postgres() -> None:
        if postgres.find_running() is not None:
            postgres.stop()  # not our child: its exit would go unnoticed
        postgres.prepare()

    database = ChildSpec(
        name=POSTGRES,
        command=postgres.command,
        environment=postgres.environment(),
        pid_file=layout.pid_file(POSTGRES),
        log_file=layout.log_file(POSTGRES),
        before_start=prepare_postgres,
        # SIGINT is PostgreSQL's fast shutdown: it does not wait for its clients.
        stop_signals=((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)),
    )
    return [
        SupervisedService(database, postgres.is_ready),
        # On one machine only one version runs at a time. A newer version may have left data, disks included, that this
        # one does not understand.
        SupervisedTask(part(MIGRATIONS, "migrate", "--roles", "--refuse-newer")),
        # Both start concurrently with the API; `up` checks then that they are alive.
        SupervisedService(part(PROCESSOR, "processor", role=PROCESSOR_ROLE, own=_metrics_address(settings, 1))),
        SupervisedService(
            part(PROXY, "proxy", "--handover", str(layout.run), role=API_ROLE, own=_metrics_address(settings, 2))
        ),
        SupervisedService(
            part(API, "api", "--handover", str(layout.run), role=API_ROLE),
            lambda: api_probe.is_live(api_url(settings)),
        ),
    ]


def _metrics_address(settings: Settings, offset: int) -> dict[str, str]:
    """Processor and proxy serve their metrics on the ports after the API's: on one machine they cannot share one."""
    if not settings.metrics_address:
        return {}
    address = parse_bind_address(settings.metrics_address)
    return {"GPU_DEV_METRICS_ADDRESS": str(replace(address, port=address.port + offset))}


def api_url(settings: Settings) -> str:
    """The API's address on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.api_host, settings.api_host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.api_port}"


def _make_reporter(descriptor: int) -> Callable[[StartupStep], None]:
    def report(step: StartupStep) -> None:
        # `up` may have exited; the system continues.
        with contextlib.suppress(OSError):
            os.write(descriptor, json.dumps(asdict(step)).encode() + b"\n")

    return report


def main(arguments: Sequence[str]) -> int:
    import structlog

    from gpudev.embedded.supervisor import Supervisor

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=LineLoggerFactory(),
    )
    rlimits.raise_open_files_limit(
        rlimits.DEFAULT_OPEN_FILES_LIMIT
    )  # inherited by all processes and dev servers: the default on macOS is 256
    settings = settings_module.load_settings(settings_module.on_this_machine(os.environ))
    settings = replace(settings, state_dir=settings.state_dir.resolve())
    layout = Layout(settings.state_dir)
    return Supervisor(layout, startup_parts(settings, os.environ), _make_reporter(int(arguments[0]))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
