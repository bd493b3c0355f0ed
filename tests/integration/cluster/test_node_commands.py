"""`gpu-dev-server nodes` on a real database, each change with its line in the audit log."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result

from gpudev.adapters.postgres.stores import Stores, open_stores
from gpudev.domain.cluster import Node
from gpudev.main import cli
from gpudev.settings import DatabaseSettings, Settings

Run = Callable[..., Result]


@pytest.fixture
def run(settings: Settings, database: DatabaseSettings) -> Run:
    async def see_nodes(stores: Stores) -> None:
        lease = await stores.leases.acquire("planning", "test", timedelta(minutes=1))
        assert lease is not None
        for nodes in ([Node("node-1", "h100", 8), Node("node-2", "h100", 8)], [Node("node-1", "h100", 8)]):
            await stores.nodes.publish_nodes(lease, nodes, datetime.now(UTC))
        await stores.close()

    asyncio.run(see_nodes(open_stores(settings)))
    environment = {
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
    }

    def run(*arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(cli, list(arguments), env=environment)
        assert done.exit_code == code, f"{done.output}\n{done.exception!r}"
        return done

    return run


def test_nodes_are_closed_listed_and_opened_again(run: Run) -> None:
    run("nodes", "cordon", "node-1", "--reason", "new driver")
    run("nodes", "cordon", "node-2")
    rows = {row["name"]: row for row in json.loads(run("nodes", "list", "--json").output)}
    assert (rows["node-1"]["state"], rows["node-1"]["reason"]) == ("closed", "new driver")
    assert (rows["node-2"]["state"], rows["node-2"]["cordoned"]) == ("away", True)
    assert "(console): new driver" in run("nodes", "list").output
    run("nodes", "uncordon", "node-1")
    (row,) = [row for row in json.loads(run("nodes", "list", "--json").output) if row["name"] == "node-1"]
    assert (row["state"], row["cordoned"]) == ("open", False)
    audited = [json.loads(line) for line in run("audit", "--json").output.splitlines()]
    assert [(entry["action"], entry["target"]) for entry in audited] == [
        ("gpu-dev-server nodes cordon", "node-1 (new driver)"),
        ("gpu-dev-server nodes cordon", "node-2"),
        ("gpu-dev-server nodes uncordon", "node-1"),
    ]


def test_a_drain_of_an_empty_node_is_done_at_once(run: Run) -> None:
    said = run("nodes", "drain", "node-1", "--wait").output
    assert said.splitlines() == ["node-1 is cordoned", "node-1 is empty"]


def test_a_node_that_nobody_knows_is_an_error(run: Run) -> None:
    for command in ("cordon", "uncordon", "drain"):
        assert "no node named 'nowhere'" in str(run("nodes", command, "nowhere", code=1).exception)
