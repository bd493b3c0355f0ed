"""`api`, `proxy`, `processor`, `migrate`: the long-running services and the schema they need."""

import asyncio
import json

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


@click.command()
@click.option("--host", help="Address to listen on (GPU_DEV_API_HOST).")
@click.option("--port", type=int, help="Port to listen on (GPU_DEV_API_PORT).")
def api(host: str | None, port: int | None) -> None:
    """Serve the REST API until stopped."""
    import uvloop

    from gpudev.api.app import create_app
    from gpudev.bootstrap.api import open_api_dependencies
    from gpudev.bootstrap.listeners import GracefulServer, serve_tls_listener
    from gpudev.bootstrap.observability import HealthAndMetrics, open_tracer, serve_metrics
    from gpudev.bootstrap.proxy import open_jupyter_proxy, open_ssh_sessions

    chosen = load_server_settings()
    configure_logging(chosen)

    async def serve() -> None:
        async with (
            open_tracer(chosen, "gpu-dev-api") as tracer,
            open_api_dependencies(chosen, tracer) as services,
            open_ssh_sessions(services) as sessions,
            open_jupyter_proxy(
                chosen,
                services.reservations,
                services.proxy_tokens,
                services.jupyter_keys,
                trail=services.trail,
                clock=services.clock,
            ) as jupyter,
        ):
            tune_garbage_collector()
            rlimits.raise_open_files_limit()
            app = create_app(services)
            config = jupyter.server_config(
                app, sessions, host or chosen.api_host, port or chosen.api_port, chosen.guarding
            )
            async with (
                serve_metrics(chosen, HealthAndMetrics(watchdog=sessions.watchdog, check_ready=services.ping)),
                serve_tls_listener(config, chosen),
            ):
                await GracefulServer(config).serve()

    uvloop.run(serve())


@click.command()
@click.option("--host", help="Address to listen on (GPU_DEV_PROXY_HOST).")
@click.option("--port", type=int, help="Port to listen on (GPU_DEV_PROXY_PORT).")
def proxy(host: str | None, port: int | None) -> None:
    """Carry ssh through WebSockets until stopped, apart from the API (which does it too, where this does not run)."""
    import uvloop

    from gpudev.bootstrap.listeners import GracefulServer
    from gpudev.bootstrap.observability import serve_metrics
    from gpudev.bootstrap.proxy import open_proxy

    chosen = load_server_settings()
    configure_logging(chosen)

    async def serve() -> None:
        async with open_proxy(chosen) as (eyes, sessions, jupyter), serve_metrics(chosen, eyes):
            tune_garbage_collector()
            rlimits.raise_open_files_limit()
            config = jupyter.server_config(
                eyes.health_app(), sessions, host or chosen.proxy.host, port or chosen.proxy.port, chosen.guarding
            )
            await GracefulServer(config).serve()

    uvloop.run(serve())


@click.command()
def processor() -> None:
    """Plan, start and end dev servers until stopped. Any number may run; one of them plans."""
    from gpudev.bootstrap.observability import HealthAndMetrics, open_tracer, serve_metrics
    from gpudev.bootstrap.processor import open_processor

    chosen = load_server_settings()
    configure_logging(chosen)
    eyes = HealthAndMetrics()

    async def run() -> None:
        async with (
            serve_metrics(chosen, eyes),
            open_tracer(chosen, "gpu-dev-processor") as tracer,
            open_processor(chosen, tracer) as running,
        ):
            eyes.attach_processor(running)
            tune_garbage_collector()
            await running.processor.run()

    asyncio.run(run_until_stopped(run()))


@click.command()
@click.option("--status", is_flag=True, help="Only show what is applied and what is not.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long a database that does not answer yet is waited for.",
)
@click.option("--roles", is_flag=True, help="Make the services' database roles, too (needs CREATEROLE).")
@click.option("--refuse-newer", is_flag=True, help="Fail where a later version has migrated already.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def migrate(status: bool, wait: float, roles: bool, refuse_newer: bool, as_json: bool) -> None:
    """Bring the database's schema up to date, and what its roles may do (docs/security.md).

    Safe to run twice, and from several places at once.
    """
    chosen = load_server_settings()
    configure_logging(chosen)
    database = chosen.database
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
