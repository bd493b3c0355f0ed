"""Wire models from and to JSON, with the standard library only.

Unknown fields are ignored (a newer server may send more). A value of the wrong type raises an error that names its
field.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

_T = TypeVar("_T")
_Reader = Callable[[Any, str], Any]
_readers: dict[Any, _Reader] = {}


class MalformedData(ValueError):
    """The data does not match its model; the message names the field."""


def decode_model(model: type[_T], data: object) -> _T:
    """One wire model from decoded JSON. Raises MalformedData."""
    return cast("_T", _reader(model)(data, ""))


def encode_model(value: Any, *, without_none: bool = False) -> Any:
    """A wire model as input of `json.dumps`. `without_none` omits fields that are None."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: encode_model(each) for name, each in pairs if not (without_none and each is None)}
    if isinstance(value, Mapping):
        return {name: encode_model(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode_model(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value


def _reader(kind: Any) -> _Reader:
    reader = _readers.get(kind)
    if reader is None:
        reader = _readers[kind] = _make_reader(kind)
    return reader


def _make_reader(kind: Any) -> _Reader:
    origin = get_origin(kind)
    if origin is Union or origin is UnionType:
        return _optional_reader(kind)
    if origin is list:
        return _list_reader(_reader(get_args(kind)[0]))
    if origin is dict:
        return _dict_reader(_reader(get_args(kind)[1]))
    if is_dataclass(kind):
        return _model_reader(cast("type[Any]", kind))
    if kind is datetime:
        return _decode_time
    if kind is Any:
        return lambda data, _where: data
    if kind is float:
        return _decode_number
    return _plain_reader(kind)


def _model_reader(model: type[Any]) -> _Reader:
    members = [(field.name, _reader(field.type), _default_of(field)) for field in fields(model)]
    made = {field.name: field.default_factory for field in fields(model) if field.default_factory is not MISSING}

    def read_model(data: Any, where: str) -> Any:
        if not isinstance(data, dict):
            raise MalformedData(f"{where or model.__name__} should be an object, not {_name(data)}")
        prefix = f"{where}." if where else ""
        values = {}
        for name, read_member, default in members:
            if name in data:
                values[name] = read_member(data[name], prefix + name)
            elif name in made:
                values[name] = made[name]()
            elif default is MISSING:
                raise MalformedData(f"{prefix}{name} is missing")
            else:
                values[name] = default
        return model(**values)

    return read_model


def _default_of(field: "Field[Any]") -> Any:
    """The default of an absent field. Nullable fields may be absent: an older server does not know them yet."""
    if field.default is not MISSING:
        return field.default
    return None if NoneType in get_args(field.type) else MISSING


def _optional_reader(kind: Any) -> _Reader:
    inner = [each for each in get_args(kind) if each is not NoneType]
    if len(inner) != 1:
        raise TypeError(f"a wire field is one type, or that type or null; {kind} is neither")
    read_inner = _reader(inner[0])
    return lambda data, where: None if data is None else read_inner(data, where)


def _list_reader(read_item: _Reader) -> _Reader:
    def read_list(data: Any, where: str) -> list[Any]:
        if not isinstance(data, list):
            raise MalformedData(f"{where} should be a list, not {_name(data)}")
        return [read_item(item, f"{where}[{index}]") for index, item in enumerate(data)]

    return read_list


def _dict_reader(read_value: _Reader) -> _Reader:
    def read_dict(data: Any, where: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise MalformedData(f"{where} should be an object, not {_name(data)}")
        return {name: read_value(value, f"{where}.{name}") for name, value in data.items()}

    return read_dict


def _plain_reader(kind: type) -> _Reader:
    def read_plain(data: Any, where: str) -> Any:
        # In Python a bool is an int; on the wire it is not.
        if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
            raise MalformedData(f"{where} should be {kind.__name__}, not {_name(data)}")
        return data

    return read_plain


def _decode_number(data: Any, where: str) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise MalformedData(f"{where} should be a number, not {_name(data)}")
    return float(data)


def _decode_time(data: Any, where: str) -> datetime:
    if not isinstance(data, str):
        raise MalformedData(f"{where} should be a time, not {_name(data)}")
    try:
        time = datetime.fromisoformat(data)
    except ValueError as error:
        raise MalformedData(f"{where} should be a time, not {data[:40]!r}") from error
    if time.tzinfo is None:
        raise MalformedData(f"{where} should say its time zone: {data[:40]!r}")
    return time


def _name(data: Any) -> str:
    return "null" if data is None else type(data).__name__
