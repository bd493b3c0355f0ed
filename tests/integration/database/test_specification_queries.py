"""The queries that docs/spec.md prints run on the schema as it is."""

import re

from gpudev.adapters.postgres.database.pool import connect
from gpudev.settings import DatabaseSettings
from support.specification import printed_commands


async def test_every_query_of_the_documents_runs(database: DatabaseSettings) -> None:
    queries = [query for each in printed_commands() for query in re.findall(r'psql .* -c "(.+?)"', each.command)]
    assert len(queries) == 3
    connection = await connect(database)
    try:
        answers = [await connection.fetch(query) for query in queries]
    finally:
        await connection.close()
    assert {row["gpu_type"] for row in answers[0]} >= {"t4", "a100", "h100", "h200", "b200"}
    assert {row["queue_name"] for row in answers[2]} >= {"gpu_reservations", "disk_operations"}
