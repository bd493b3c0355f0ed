"""Parsing of settings from environment variables."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar, get_args

_T = TypeVar("_T")


def read_section(
    env: Mapping[str, str], default: _T, prefix: str, names: Mapping[str, str] = MappingProxyType({})
) -> _T:
    """A section's fields, from variables named PREFIX + FIELD or as in `names`. Timedeltas are in seconds."""
    values = {}
    for field in fields(default):  # type: ignore[arg-type]
        variable = names.get(field.name, prefix + field.name.upper())
        default_value = getattr(default, field.name)
        values[field.name] = read_variable(env, variable, _reader(field.type, default_value), default_value)
    return type(default)(**values)


def _reader(field_type: Any, default: Any) -> Callable[[str], Any]:
    match default:
        case timedelta():
            return lambda text: timedelta(seconds=float(text))
        case float():
            return float
        case str():
            return str
        case tuple():
            part_type = get_args(field_type)[0]
            return lambda text: tuple(part_type(part.strip()) for part in text.split(","))
        case _:
            return int


def parse_switch(text: str) -> bool:
    known = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}
    try:
        return known[text.strip().lower()]
    except KeyError:
        raise ValueError("expected on or off") from None


def parse_days(text: str) -> timedelta | None:
    days = float(text)
    if not 0 <= days <= 36_500:
        raise ValueError("expected a number of days, or 0 for no expiry")
    return timedelta(days=days) if days else None


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip().lower()))


def parse_positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError("expected a number above 0")
    return number


def read_variable(env: Mapping[str, str], name: str, parse: Callable[[str], Any], default: Any) -> Any:
    text = env.get(name)
    if text is None or text == "":
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"invalid {name} {text!r}: {error}") from error
