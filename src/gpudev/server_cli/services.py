"""`api`, `proxy`, `processor`, `migrate`: the long-running services and the schema they need."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import click

from gpudev import rlimits
from gpudev.adapters.postgres.database import migrator
from gpudev.bootstrap.service_runtime import (
    configure_logging,
    run_until_stopped,
    tune_garbage_collector,
    wait_for_database,
)
from gpudev.server_cli.command_runtime import load_server_settings

_HANDOVER = click.option(
    "--handover",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Serve one port with two processes, `api` and `proxy`, which pass connections to each other through sockets "
    "in this folder. Only their user may have access to it.",
)


@click.command()
@click.option("--host", help="Address to listen on (GPU_DEV_API_HOST).")
@click.option("--port", type=int, help="Port to listen on (GPU_DEV_API_PORT).")
@_HANDOVER
def api(host: str | None, port: int | None, handover: Path | None) -> None:
    """Serve the REST API until stopped, with ssh and Jupyter on the same port."""
    import uvloop

    from gpudev.api.app import create_app
    from gpudev.bootstrap.api import open_api_dependencies
    from gpudev.bootstrap.handover import open_api_server
    from gpudev.bootstrap.listeners import serve_tls_listener
    from gpudev.bootstrap.observability import HealthAndMetrics, open_tracer, serve_metrics

    settings = load_server_settings()
    settings = replace(settings, api_host=host or settings.api_host, api_port=port or settings.api_port)
    configure_logging(settings)

    async def serve() -> None:
        async with (
            open_tracer(settings, "gpu-dev-api") as tracer,
            open_api_dependencies(settings, tracer) as services,
            open_api_server(create_app(services), services, handover) as (server, watchdog),
            serve_metrics(settings, HealthAndMetrics(watchdog=watchdog, check_ready=services.ping)),
            serve_tls_listener(server.config, settings),
        ):
            tune_garbage_collector()
            rlimits.raise_open_files_limit()
            await server.serve()

    uvloop.run(serve())


@click.command()
@click.option("--host", help="Address to listen on (GPU_DEV_PROXY_HOST).")
@click.option("--port", type=int, help="Port to listen on (GPU_DEV_PROXY_PORT).")
@_HANDOVER
def proxy(host: str | None, port: int | None, handover: Path | None) -> None:
    """Serve the ssh and Jupyter proxy until stopped, separately from the API (which has its own)."""
    import uvloop

    from gpudev.bootstrap.handover import open_proxy_beside_api
    from gpudev.bootstrap.listeners import GracefulServer
    from gpudev.bootstrap.observability import serve_metrics
    from gpudev.bootstrap.proxy import open_proxy

    settings = load_server_settings()
    configure_logging(settings)

    async def serve() -> None:
        async with open_proxy(settings) as (health, sessions, jupyter), serve_metrics(settings, health):
            tune_garbage_collector()
            rlimits.raise_open_files_limit()
            if handover is not None:
                async with open_proxy_beside_api(jupyter, sessions, handover, settings.guarding) as server:
                    await server.serve(sockets=[])
                return
            config = jupyter.server_config(
                health.health_app(),
                sessions,
                host or settings.proxy.host,
                port or settings.proxy.port,
                settings.guarding,
            )
            await GracefulServer(config).serve()

    uvloop.run(serve())


@click.command()
def processor() -> None:
    """Plan, start and end dev servers until stopped. Several may run; one of them plans."""
    from gpudev.bootstrap.observability import HealthAndMetrics, open_tracer, serve_metrics
    from gpudev.bootstrap.processor import open_processor

    settings = load_server_settings()
    configure_logging(settings)
    health = HealthAndMetrics()

    async def run() -> None:
        async with (
            serve_metrics(settings, health),
            open_tracer(settings, "gpu-dev-processor") as tracer,
            open_processor(settings, tracer) as running,
        ):
            health.attach_processor(running)
            tune_garbage_collector()
            await running.processor.run()

    asyncio.run(run_until_stopped(run()))


@click.command()
@click.option("--status", is_flag=True, help="Only list the migrations and whether they are applied.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for a database that does not answer yet.",
)
@click.option("--roles", is_flag=True, help="Also create the services' database roles (requires CREATEROLE).")
@click.option("--refuse-newer", is_flag=True, help="Fail if a later version has migrated the database.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def migrate(status: bool, wait: float, roles: bool, refuse_newer: bool, as_json: bool) -> None:
    """Update the database schema and the rights of its roles (docs/security.md).

    Idempotent; several may run at once.
    """
    settings = load_server_settings()
    configure_logging(settings)
    database = settings.database
    if wait:
        asyncio.run(wait_for_database(database, wait))
    if not status:
        applied = asyncio.run(migrator.migrate(database, roles=roles, refuse_newer=refuse_newer))
        if not as_json:
            click.echo(f"applied {len(applied)} migration(s)" if applied else "the schema is up to date")
            return
    states = asyncio.run(migrator.list_migration_states(database))
    if as_json:
        rows = [
            {"number": s.number, "name": s.name, "applied_at": s.applied_at and s.applied_at.isoformat()}
            for s in states
        ]
        click.echo(json.dumps(rows))
        return
    for state in states:
        when = f"applied {state.applied_at:%Y-%m-%d %H:%M:%S} UTC" if state.applied_at else "not applied"
        click.echo(f"{state.number:04}  {state.name:<24}  {when}")
