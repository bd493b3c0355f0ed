"""docs/database.md has every table and column that the migrations make, each with its meaning."""

import re

from gpudev.adapters.postgres.database.pool import connect
from gpudev.settings import DatabaseSettings
from support import database_page
from support.database_page import Column


async def test_the_tables_are_those_of_a_migrated_database(database: DatabaseSettings) -> None:
    connection = await connect(database)
    try:
        schema = await database_page.read_schema(connection)
    finally:
        await connection.close()
    text = database_page.PAGE.read_text(encoding="utf-8")
    assert {"api_users", "gpu_types", "reservations", "disks"} <= schema.keys(), "the tables are found"
    same = database_page.page(schema, text) == text
    assert same, "run `.venv/bin/python tools/database-page` and describe what is new"


def test_every_column_is_described() -> None:
    text = database_page.PAGE.read_text(encoding="utf-8")
    assert database_page.undescribed(text) == []
    assert len(re.findall(r"^\| `\w+` \|", text, re.MULTILINE)) > 250


def test_a_new_column_and_a_new_table_come_without_a_meaning_and_the_rest_is_kept() -> None:
    before = "# Tables\n\n### `dogs`\n\nGood ones.\n\n| column | type | | meaning |\n|---|---|---|---|\n"
    text = before + "| `name` | integer |  | what it hears |\n\n### `cats`\n\nGone.\n"
    schema = {"dogs": [Column("name", "text", ""), Column("age", "integer", "may be null")], "owls": []}
    after = database_page.page(schema, text)
    assert "Good ones." in after
    assert "| `name` | text |  | what it hears |" in after
    assert "| `age` | integer | may be null |  |" in after
    assert "### `owls`" in after
    assert "cats" not in after
    assert database_page.undescribed(after) == ["dogs.age"]
