"""`queue`: PGMQ's messages and dead letters."""

import json
from typing import Any

import click

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.queue import MESSAGE_QUEUES, dead_letter_queue
from gpudev.server_cli.audit import record_command
from gpudev.server_cli.command_runtime import run_with_stores

_NAMES = [name for queue in MESSAGE_QUEUES for name in (queue, dead_letter_queue(queue))]


@click.group()
def queue() -> None:
    """Inspect the message queues, retry or drop dead letters."""


@queue.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_queues(as_json: bool) -> None:
    """List every queue with its length and the age of its oldest message."""

    async def act(stores: Stores) -> list[dict[str, Any]]:
        return [
            {
                "queue": state.queue,
                "length": state.length,
                "visible": state.visible,
                "oldest_age_seconds": state.oldest_age_seconds,
                "total": state.total,
            }
            for state in await stores.message_queue.list_queue_metrics()
        ]

    found = run_with_stores(act)
    if as_json:
        click.echo(json.dumps(found))
        return
    for row in found:
        age = "" if row["oldest_age_seconds"] is None else f"oldest {row['oldest_age_seconds']} s"
        click.echo(f"{row['queue']:<24}  {row['length']:>6} waiting  {age}")


@queue.command()
@click.argument("name", type=click.Choice(_NAMES))
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, limit: int, as_json: bool) -> None:
    """Show the messages of a queue without reading them off."""

    async def act(stores: Stores) -> list[dict[str, Any]]:
        return [
            {
                "msg_id": message.msg_id,
                "read_count": message.read_count,
                "enqueued_at": message.enqueued_at.isoformat(),
                "message": message.body,
            }
            for message in await stores.message_queue.peek_messages(name, limit)
        ]

    found = run_with_stores(act)
    if as_json:
        click.echo(json.dumps(found))
        return
    for row in found:
        click.echo(f"{row['msg_id']:>8}  {row['enqueued_at']}  {json.dumps(row['message'])}")
    if not found:
        click.echo(f"{name} is empty")


@queue.command()
@click.argument("name", type=click.Choice(MESSAGE_QUEUES))
@click.argument("msg_id", type=int)
def retry(name: str, msg_id: int) -> None:
    """Send a dead letter of queue NAME back to it. A failed reservation stays failed."""

    async def act(stores: Stores) -> None:
        await stores.message_queue.retry_dead_letter(name, msg_id)
        await record_command(stores, "queue retry", f"{msg_id} of {name}")

    run_with_stores(act)
    click.echo(f"message {msg_id} is back in {name}")


@queue.command()
@click.argument("name", type=click.Choice(_NAMES))
@click.argument("msg_id", type=int)
def drop(name: str, msg_id: int) -> None:
    """Delete a message."""

    async def act(stores: Stores) -> None:
        await stores.message_queue.drop_message(name, msg_id)
        await record_command(stores, "queue drop", f"{msg_id} of {name}")

    run_with_stores(act)
    click.echo(f"message {msg_id} is deleted from {name}")
