"""`gpu-dev-server reconcile`, `report orphans` and `expire` as processes, over a real database and AWS as our stub
plays it."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpudev.adapters.aws.permissions import RECONCILE_AVAILABILITY, RECONCILE_DISKS
from gpudev.adapters.postgres.database.leases import PostgresReconcileLocks
from gpudev.adapters.postgres.stores import Stores
from gpudev.ports.leases import ReconcilePass
from gpudev.settings import DatabaseSettings
from support.clouds.aws_stub import AwsStub, Cut, Delay, Fault
from support.paper_cloud import BEGINNING
from support.polling import eventually_async
from support.system.reconcile_commands import Operator, columns, give

pytestmark = pytest.mark.slow


@pytest.fixture
async def stub() -> AsyncIterator[AwsStub]:
    stub = AwsStub()
    await stub.start()
    yield stub
    await stub.close()


@pytest.fixture
def operator(stub: AwsStub, database: DatabaseSettings, tmp_path: Path) -> Operator:
    nodes = tmp_path / "nodes.toml"
    nodes.write_text('[[node]]\nname = "sim-1"\ngpu_type = "h100"\ngpus = 8\n')
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_", "AWS_", "XDG_"))}
    return Operator(
        {
            **kept,
            **stub.environment(),
            "POSTGRES_HOST": database.host,
            "POSTGRES_PORT": str(database.port),
            "POSTGRES_USER": database.user,
            "POSTGRES_DB": database.database,
            "GPU_DEV_HOME": str(tmp_path / "state"),
            "GPU_DEV_NODES_FILE": str(nodes),
            "GPU_DEV_CLOUD": "aws",
            "HOSTNAME": "reconcile-28473-abcde",
        }
    )


async def test_all_runs_phase_one_then_phase_two_and_says_what_changed(
    operator: Operator, stub: AwsStub, stores: Stores
) -> None:
    stub.pages.limit = 2
    for number in range(5):
        stub.account.give_group(f"pytorch-gpu-dev-gpu-nodes-h100-{number}", desired=2, in_service=1)
    volumes = [give(stub, disk=f"disk-{number}", size_gb=50) for number in range(5)]
    stub.account.give_snapshot(volumes[0], {"gpu-dev-user": "ada"}, created_at=BEGINNING)
    dry = await operator.run("reconcile", "all", "--dry-run", "--json")
    assert dry.json["disks"]["statistics"]["created"] == 5
    assert await stores.disk_records.list_records() == []
    assert (await columns(stores))["last_availability_update"] is None
    done = await operator.run("reconcile", "all", "--json")
    assert (done.code, done.json["succeeded"]) == (0, True), done.err
    row = await columns(stores)
    assert (row["total_cluster_gpus"], row["available_gpus"], row["running_instances"]) == (8, 8, 5)
    assert (row["desired_capacity"], row["last_availability_updated_by"]) == (10, "reconcile-28473-abcde")
    records = {record.disk_name: record for record in await stores.disk_records.list_records()}
    assert records["disk-0"].snapshot_count == 1
    assert {record.volume_id for record in records.values()} == set(volumes)
    text = await operator.run("reconcile", "all")
    assert "aws_volumes=5 db_records=5 synced=5 updated=0 created=0 errors=0" in text.out
    assert "pytorch-gpu-dev-gpu-nodes-a100*" in text.err


@pytest.mark.parametrize(("what", "granted"), [
    (("reconcile", "availability"), RECONCILE_AVAILABILITY),
    (("reconcile", "disks"), RECONCILE_DISKS),
    (("report", "orphans"), RECONCILE_DISKS),
])  # fmt: skip
async def test_each_asks_aws_for_exactly_what_it_is_granted(
    operator: Operator, stub: AwsStub, what: tuple[str, str], granted: frozenset[str]
) -> None:
    stub.policy = frozenset(granted)
    give(stub)
    done = await operator.run(*what)
    assert done.code == 0, done.err
    assert stub.actions_called == granted


async def test_a_listing_that_ends_early_fails_and_changes_nothing(
    operator: Operator, stub: AwsStub, stores: Stores
) -> None:
    give(stub)
    assert (await operator.run("reconcile", "disks")).code == 0
    before = await stores.disk_records.list_records()
    stub.account.volumes.clear()
    stub.faults.append(Fault(Cut()))
    done = await operator.run("reconcile", "disks", "--json")
    assert (done.code, done.json["succeeded"]) == (1, False)
    assert "nothing was changed" in done.json["disks"]["errors"][0]
    assert await stores.disk_records.list_records() == before


async def test_a_scheduled_run_leaves_it_to_whoever_is_at_it_and_a_run_by_hand_waits(
    operator: Operator, stub: AwsStub, stores: Stores
) -> None:
    give(stub)
    async with PostgresReconcileLocks(stores.pool).hold(ReconcilePass.DISKS, wait=True) as busy:
        assert busy is None
        scheduled = await operator.run("reconcile", "disks", "--scheduled", "--json")
        assert scheduled.code == 0
        assert f":{os.getpid()})" in scheduled.json["disks"]["skipped"]
        other = await operator.run("reconcile", "availability", "--scheduled", "--json")
        assert "updated" in other.json["availability"], "each pass has a lock of its own"
        by_hand = await operator.start("reconcile", "disks", "--json")
        await eventually_async(lambda: _waiting_for_locks(stores))
        assert by_hand.returncode is None
        assert await stores.disk_records.list_records() == []
    out, _ = await asyncio.wait_for(by_hand.communicate(), 60)
    assert json.loads(out)["disks"]["statistics"]["created"] == 1


async def test_two_at_once_by_hand_go_one_after_the_other(operator: Operator, stub: AwsStub, stores: Stores) -> None:
    for number in range(20):
        give(stub, disk=f"disk-{number}")
    stub.faults.append(Fault(Delay(0.3)))
    both = await asyncio.gather(*(operator.run("reconcile", "disks", "--json") for _ in range(2)))
    counts = sorted(
        (done.json["disks"]["statistics"]["created"], done.json["disks"]["statistics"]["synced"]) for done in both
    )
    assert counts == [(0, 20), (20, 0)]
    async with stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM disk_events") == 20


async def test_it_ends_by_itself_within_its_deadline(operator: Operator, stub: AwsStub) -> None:
    stub.faults.append(Fault(Delay(30)))
    began = time.monotonic()
    done = await operator.run("reconcile", "disks", "--deadline", "2")
    assert done.code == 1
    assert "not finished within 2 s" in done.err
    assert time.monotonic() - began < 25


async def _waiting_for_locks(stores: Stores) -> int:
    async with stores.pool.acquire() as connection:
        count: int = await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        )
    return count


async def test_a_killed_run_leaves_its_lock_to_the_next(operator: Operator, stub: AwsStub) -> None:
    give(stub)
    stub.faults.append(Fault(Delay(30)))
    killed = await operator.start("reconcile", "disks")
    await eventually_async(lambda: stub.called)
    stub.faults.clear()
    killed.kill()
    await killed.communicate()
    done = await operator.run("reconcile", "disks", "--scheduled", "--json")
    assert done.json["disks"]["statistics"]["created"] == 1


async def test_orphans_are_reported_with_size_age_and_monthly_cost(operator: Operator, stub: AwsStub) -> None:
    give(stub, "ghost", "lost", size_gb=1000)
    stub.account.give_volume({"gpu-dev-user": "ada"}, created_at=BEGINNING, size_gb=10)
    gone = give(stub, "ada", "gone", size_gb=500)
    stub.account.give_snapshot(gone, {"gpu-dev-user": "ada"}, created_at=BEGINNING, size_gb=500)
    stub.account.destroy_volume(gone)
    assert (await operator.run("reconcile", "disks")).code == 0
    found = (await operator.run("report", "orphans", "--json")).json
    assert [(one["kind"], one["size_gb"], one["monthly_cost"]) for one in found["orphans"]] == [
        ("volume", 1000, 80.0),
        ("snapshot", 500, 25.0),
        ("volume", 10, 0.8),
    ]
    assert "its owner ghost is not active" in found["orphans"][0]["reason"]
    assert found["orphans"][0]["age"] > 0
    assert found["monthly_cost"] == pytest.approx(105.8)
    assert "105.80 per month" in (await operator.run("report", "orphans")).out


async def test_without_a_cloud_disks_are_refused_and_all_does_the_rest(operator: Operator) -> None:
    alone = Operator({**operator.environment, "GPU_DEV_CLOUD": "none"})
    refused = await alone.run("reconcile", "disks")
    assert refused.code == 1
    assert "GPU_DEV_CLOUD" in refused.err
    one_machine = Operator({**operator.environment, "GPU_DEV_CLOUD": "local"})
    assert "there is nothing to compare" in (await one_machine.run("report", "orphans")).err
    done = await alone.run("reconcile", "all", "--json")
    assert (done.code, done.json["availability"]["warnings"]) == (0, [])
    assert "no cloud" in done.json["disks"]["skipped"]


async def test_expire_says_what_it_did(operator: Operator, stores: Stores) -> None:
    done = await operator.run("expire", "--json")
    assert done.code == 0, done.err
    assert (done.json["acted"], done.json["changes"], done.json["sent_again"]) == (True, [], [])
    async with PostgresReconcileLocks(stores.pool).hold(ReconcilePass.EXPIRY, wait=True):
        assert "already running" in (await operator.run("expire", "--scheduled")).out


async def test_the_variables_of_the_cluster_alone_never_put_this_machine_into_the_catalogue(
    operator: Operator, stores: Stores, tmp_path: Path
) -> None:
    """As the updater's own description runs it: no setting of ours beside the database and the cluster's name."""
    environment = {n: v for n, v in operator.environment.items() if n not in ("GPU_DEV_NODES_FILE", "GPU_DEV_CLOUD")}
    before = await stores.catalogue.catalogue()
    numbers = await stores.catalogue.availability()
    eks = Operator({**environment, "EKS_CLUSTER_NAME": "pytorch-gpu-dev-cluster"})
    bare = Operator(environment)
    for command in (("reconcile", "all", "--dry-run"), ("reconcile", "all"), ("expire", "--dry-run")):
        for somebody in (eks, bare):
            done = await somebody.run(*command)
            assert done.code == 1, done.out
            assert await stores.catalogue.catalogue() == before
            assert await stores.catalogue.availability() == numbers
    assert "disks: aws_volumes=0" in (await eks.run("reconcile", "all")).out, "the other phase goes on"
    assert "EKS cluster pytorch-gpu-dev-cluster" in (await eks.run("reconcile", "availability")).err
    assert "GPU_DEV_CLUSTER=kubernetes" in (await bare.run("reconcile", "availability", "--dry-run")).err


async def test_a_machine_that_is_described_is_reconciled_without_describing_it_again(
    operator: Operator, stores: Stores
) -> None:
    before = await stores.catalogue.catalogue()
    assert (await operator.run("reconcile", "availability")).code == 0
    assert (await columns(stores))["total_cluster_gpus"] == 8
    assert await stores.catalogue.catalogue() == before


async def test_every_failing_run_has_a_line_with_error(operator: Operator, stub: AwsStub) -> None:
    """What operators search the logs of the CronJobs for."""
    give(stub, disk="ä" * 5)
    stub.faults.append(Fault(Cut()))
    cut = await operator.run("reconcile", "disks")
    assert (cut.code, _lines_with_error(cut.err)) == (1, 1)
    stub.faults.clear()
    late = await operator.run("reconcile", "disks", "--deadline", "0.001")
    assert (late.code, _lines_with_error(late.err)) == (1, 1)
    nowhere = {**operator.environment, "POSTGRES_HOST": "127.0.0.1", "POSTGRES_PORT": "9"}
    for command in (("reconcile", "all"), ("expire",)):
        done = await Operator(nowhere).run(*command)
        assert (done.code, _lines_with_error(done.err)) == (1, 1), done.err
    unset = await Operator({**operator.environment, "GPU_DEV_CLOUD": "azure"}).run("reconcile", "all")
    assert (unset.code, _lines_with_error(unset.err)) == (1, 1)
    assert _lines_with_error((await operator.run("reconcile", "availability")).err) == 0


def _lines_with_error(text: str) -> int:
    return sum("ERROR" in line for line in text.splitlines())
