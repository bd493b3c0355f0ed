"""The chart's database with real processes: its own scripts and configuration, and the environment of its own pods."""

import contextlib
import signal
from base64 import b64encode
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gpudev.adapters.postgres.database.migrator import is_schema_current, migrate
from gpudev.adapters.postgres.database.pool import connect
from gpudev.bootstrap.service_runtime import wait_for_database
from gpudev.domain.errors import Unavailable
from gpudev.settings import API_ROLE, DatabaseSettings
from support.deploy.helm_chart import Helm, Object
from support.deploy.postgres_pods import postgres_pods
from support.polling import eventually_async

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PRIMARY, REPLICA = "postgres-primary", "postgres-replica"
# What a password may hold: everything that a shell, SQL, a connection string or a file could take for its own.
_PASSWORD = 'it\'s \\ a "new" $one; -- %s'


async def test_the_replica_follows_is_promoted_and_the_former_primary_comes_back_only_when_told_to(helm: Helm) -> None:
    auth = {"auth": {"password": _PASSWORD}}
    with postgres_pods(helm.render(values={"postgres": auth})) as pods:
        replication = pods.secret()["REPLICATION_PASSWORD"]

        def install(**postgres: object) -> None:
            """`helm upgrade`, which keeps the generated password."""
            pods.rendered = helm.render(values={"postgres": {**auth, **postgres}})
            kept = pods.rendered.get("Secret", "postgres-credentials")["data"]
            kept["REPLICATION_PASSWORD"] = b64encode(replication.encode()).decode()

        pods.spawn(REPLICA)  # it waits for the primary, whoever comes first
        pods.start(PRIMARY)
        await migrate(pods.database(PRIMARY))
        await _add_user(pods.database(PRIMARY), "ada")
        await _until_user(pods.database(REPLICA), "ada")
        async with _session(pods.database(REPLICA)) as replica:
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await replica.execute("DELETE FROM api_users")
        async with _session(pods.database(PRIMARY)) as primary:
            [row] = await primary.fetch("SELECT application_name, state FROM pg_stat_replication")
            assert (row["application_name"], row["state"]) == ("standby", "streaming"), "operators see it as gpudev"

        pods.end(PRIMARY, signal.SIGKILL)
        pods.end(REPLICA)
        install(serveFrom="replica")
        pods.start(REPLICA)
        promoted = pods.database(REPLICA)
        await _until_user(promoted, "ada")
        await _add_user(promoted, "grace")
        async with _session(promoted) as session:
            timeline = await session.fetchval("SELECT timeline_id FROM pg_control_checkpoint()")
            assert timeline > 1, "a history of its own, so that nobody mistakes the former primary's for it"

        pods.spawn(PRIMARY)
        assert "may have data that the current primary lacks" in pods.ended(PRIMARY)
        install(serveFrom="replica", rebuildStandby=True)
        pods.start(PRIMARY)
        await _until_user(pods.database(PRIMARY), "grace")
        pods.end(REPLICA)
        pods.start(REPLICA)
        await _until_user(pods.database(REPLICA), "grace")


async def test_backups_are_whole_are_counted_and_come_back_into_an_empty_database(helm: Helm) -> None:
    with postgres_pods(helm.render(values=_alone())) as pods:
        pods.start(PRIMARY)
        database = pods.database(PRIMARY)
        await migrate(database)
        await _add_user(database, "ada")
        await _send(database, "a message")
        cron = pods.rendered.get("CronJob", "postgres-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        declared = {one["name"] for one in cron["containers"][0]["env"]}
        folder = pods.new_folder("backups")
        environment = _libpq(database) | {"BACKUPS": str(folder), "KEEP": "2"}
        assert environment.keys() == declared, "the CronJob gives the script what it reads"
        for old in ("gpudev-20200101T000000Z.dump", "gpudev-20200102T000000Z.dump", "x.half"):
            (folder / old).touch()
        (folder / "notes.txt").touch()
        done = pods.run("backup.sh", environment=environment)
        assert done.returncode == 0, done.stderr
        names = sorted(path.name for path in folder.iterdir())
        assert names[0] == "gpudev-20200102T000000Z.dump", "the oldest went"
        assert names[2:] == ["notes.txt"], "what is no backup stays; half of one does not"
        newest = folder / names[1]

        refused = pods.run("restore.sh", str(newest), environment=environment)
        assert refused.returncode == 1
        assert "is not empty" in refused.stderr
        pods.end(PRIMARY)
        pods.rendered = helm.render(values=_alone(database="anew", password=database.password))
        pods.start(PRIMARY)
        anew = pods.database(PRIMARY)
        assert anew.database == "anew"
        restored = pods.run("restore.sh", str(newest), environment=_libpq(anew))
        assert restored.returncode == 0, restored.stderr
        await _until_user(anew, "ada")
        assert await migrate(anew) == [], "it is of this version"
        async with _session(anew) as session:
            assert await session.fetchval("SELECT count(*) FROM pgmq.q_gpu_reservations") == 1, "what waits, waits on"
            owners = await session.fetch("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
            assert [row["tableowner"] for row in owners] == ["gpudev"]


async def test_nobody_comes_in_as_superuser_and_a_password_changed_in_the_values_is_changed_in_the_database(
    helm: Helm,
) -> None:
    with postgres_pods(helm.render(values=_alone())) as pods:
        pods.start(PRIMARY)
        first = pods.database(PRIMARY)
        await wait_for_database(first, 20)
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="rejects"):
            await connect(pods.database(PRIMARY, user="postgres", database="postgres"))
        with pytest.raises(asyncpg.InvalidPasswordError):
            await connect(pods.database(PRIMARY, password="guess"))
        async with _session(first) as session:
            assert await session.fetchval("SELECT current_setting('is_superuser')") == "off"
            assert await session.fetchval("SELECT count(*) FROM pg_replication_slots") == 0, "no replica, no slot"
        api = pods.database(PRIMARY, user=API_ROLE, password=pods.secret()["API_PASSWORD"])
        async with _session(api) as session:
            assert not await is_schema_current(session), "nothing to be seen yet"
            await migrate(first)
            assert await is_schema_current(session)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute("DELETE FROM reservations")
        pods.end(PRIMARY, signal.SIGKILL)  # a crash in between does no harm
        pods.rendered = helm.render(values=_alone(password=_PASSWORD))
        pods.start(PRIMARY)
        async with _session(pods.database(PRIMARY)):
            pass
        with pytest.raises(asyncpg.InvalidPasswordError):
            await connect(first)
        assert _PASSWORD not in pods.log(PRIMARY)
        assert (first.password or "-") not in pods.log(PRIMARY)


def _alone(**auth: object) -> Object:
    """Without a replica."""
    return {"postgres": {"auth": auth, "replica": {"enabled": False}}}


def _libpq(database: DatabaseSettings) -> dict[str, str]:
    return {
        "PGHOST": database.host,
        "PGPORT": str(database.port),
        "PGUSER": database.user,
        "PGDATABASE": database.database,
        "PGPASSWORD": database.password or "",
    }


@contextlib.asynccontextmanager
async def _session(database: DatabaseSettings) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await connect(database)
    try:
        yield connection
    finally:
        await connection.close()


async def _add_user(database: DatabaseSettings, name: str) -> None:
    async with _session(database) as session:
        await session.execute("INSERT INTO api_users (username) VALUES ($1)", name)


async def _send(database: DatabaseSettings, text: str) -> None:
    async with _session(database) as session:
        await session.execute("SELECT pgmq.send('gpu_reservations', $1)", {"text": text})


async def _until_user(database: DatabaseSettings, name: str) -> None:
    async def exists() -> bool:
        # It does not answer yet, or the schema is still on its way to it.
        with contextlib.suppress(Unavailable, asyncpg.UndefinedTableError):
            async with _session(database) as session:
                return bool(await session.fetchval("SELECT EXISTS (SELECT FROM api_users WHERE username = $1)", name))
        return False

    await eventually_async(exists, within=150, every=0.05)
