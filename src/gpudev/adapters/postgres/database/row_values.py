"""Builds domain values from rows."""

from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")


def from_row(kind: type[_T], row: asyncpg.Record, /, **converted: Any) -> _T:
    """Takes each field from the column of the same name. `converted`: fields that are not simply a column."""
    same = {name: row[name] for name in _same_columns(kind, tuple(converted))}
    return kind(**same, **converted)


@cache
def _same_columns(kind: "type[DataclassInstance]", converted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in converted)
