"""docs/database.md: its tables are those of a migrated database; sentences and meanings are kept as people wrote them.

The page is the only home of the meanings. A new column gets an empty one, which a test does not accept.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import asyncpg

from support.paths import ROOT

PAGE = ROOT / "docs" / "database.md"
_HEAD = "| column | type | | meaning |\n|---|---|---|---|\n"
_SECTION = re.compile(r"^### `([\w.]+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(re.escape(_HEAD) + r"(?:^\|.*\n)*", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", re.MULTILINE)
# All queues of PGMQ have the same columns; one stands for them.
_COLUMNS = """
    SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname || '.' || c.relname END AS table,
           a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS is_required,
           a.attidentity <> '' AS is_identity, pg_get_expr(d.adbin, d.adrelid) AS default,
           ARRAY(SELECT k.contype::text FROM pg_constraint k
                 WHERE k.conrelid = c.oid AND a.attnum = ANY (k.conkey) AND k.contype IN ('p', 'u')
                   AND (k.contype = 'p' OR cardinality(k.conkey) = 1)) AS keys,
           ARRAY(SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k
                 WHERE k.conrelid = c.oid AND k.conkey = ARRAY[a.attnum] AND k.contype IN ('c', 'f')
                 ORDER BY k.contype) AS rules
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relkind = 'r' AND (n.nspname = 'public' OR n.nspname = 'pgmq' AND c.relname = 'q_gpu_reservations')
    ORDER BY n.nspname DESC, c.relname, a.attnum
"""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    notes: str


Schema = Mapping[str, list[Column]]


async def read_schema(connection: asyncpg.Connection) -> Schema:
    found: dict[str, list[Column]] = {}
    for row in await connection.fetch(_COLUMNS):
        found.setdefault(row["table"], []).append(Column(row["column"], _type(row["type"]), _notes(row)))
    return found


def _type(name: str) -> str:
    short = {"timestamp with time zone": "timestamptz", "character varying": "varchar", "double precision": "float8"}
    return re.sub("|".join(short), lambda match: short[match[0]], name)


def _notes(row: asyncpg.Record) -> str:
    notes = ["primary key"] if "p" in row["keys"] else ["unique"] if "u" in row["keys"] else []
    if not row["is_required"]:
        notes.append("may be null")
    default = re.sub(r"::[\w ]+(\[\])?", "", row["default"] or "")
    if row["is_identity"] or default.startswith("nextval"):
        notes.append("counted")
    elif default:
        notes.append(f"default `{default}`")
    for rule in row["rules"]:
        if target := re.search(r"REFERENCES (\w+)\((\w+)\)", rule):
            notes.append(f"of `{target[1]}`")
        elif values := re.search(r"ANY \(\(?ARRAY\[(.*?)\]", rule):
            notes.append(f"one of {', '.join(re.findall(chr(39) + '(.*?)' + chr(39), values[1]))}")
    return "; ".join(notes)


def page(schema: Schema, text: str) -> str:
    """The page with its tables as the schema has them. Tables that are new come last; gone ones go."""
    known = {match[1] for match in _SECTION.finditer(text)}
    text = _SECTION.sub(lambda match: _section(match, schema), text)
    new = (f"### `{name}`\n\n{_table(columns, {})}" for name, columns in schema.items() if name not in known)
    return "\n".join([text.rstrip("\n") + "\n", *new])


def _section(match: re.Match[str], schema: Schema) -> str:
    columns = schema.get(match[1])
    if columns is None:
        return ""
    table = _table(columns, meanings(match[2]))
    body = _TABLE.sub(lambda _: table, match[2]) if _TABLE.search(match[2]) else f"{match[2].rstrip()}\n\n{table}\n"
    return f"### `{match[1]}`\n{body}"


def meanings(text: str) -> dict[str, str]:
    return {match[1]: match[2] for match in _ROW.finditer(text)}


def _table(columns: Iterable[Column], known: Mapping[str, str]) -> str:
    return _HEAD + "".join(
        f"| `{each.name}` | {each.type} | {each.notes} | {known.get(each.name, '')} |\n" for each in columns
    )


def undescribed(text: str) -> list[str]:
    return [
        f"{match[1]}.{column}"
        for match in _SECTION.finditer(text)
        for column, meaning in meanings(match[2]).items()
        if not meaning
    ]
