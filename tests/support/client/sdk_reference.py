"""Writes docs/sdk-reference.md from the code: every method, option, error and model."""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpudev.sdk import client, errors, reserve_options
from gpudev.sdk.resources import addons, cluster, dev_servers, disks, jobs
from gpudev.sdk.resources.sync_async import api_method, api_stream

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sdk-reference.md"
_HEAD = """# SDK reference

Generated from the code by `tools/sdk-reference`; [sdk.md](sdk.md) is the guide.

`GpuDev` and `AsyncGpuDev` have the same methods; those of `AsyncGpuDev` are awaited. *Iterator of* means an
asynchronous iterator there, and `with` means `async with`.

For type annotations `gpudev` also exports `Server`, `AsyncServer` and `JobView`; the other models are in `gpudev.wire`.
"""
GROUPS: tuple[tuple[str, type], ...] = (
    ("client.jobs", jobs.JobMethods),
    ("client.disks", disks.DiskMethods),
    ("client.users", addons.UserMethods),
    ("client.jupyter", addons.JupyterMethods),
    ("client.cluster", cluster.ClusterMethods),
    ("client.keys", cluster.KeyMethods),
    ("client.stats", cluster.StatisticsMethods),
    ("server", dev_servers.ServerMethods),
)


def page() -> str:
    models: dict[str, type] = {}
    parts = [_HEAD, _client(models)]
    parts += [_group(name, group, models) for name, group in GROUPS]
    parts += [_options(), _errors(), _models(models)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def _client(models: dict[str, type]) -> str:
    own = client.GpuDev
    lines = ["## GpuDev, AsyncGpuDev", f"`GpuDev{_signature(own.__init__, models)}`", _doc(own), ""]
    for name in ("reserve", "server"):
        method = getattr(own, name)
        returned = _shown(inspect.signature(method).return_annotation, models)
        lines += _entry(f"client.{name}{_signature(method, models)}", returned, _doc(method))
    return "\n".join(lines)


def _group(name: str, group: type, models: dict[str, type]) -> str:
    lines = [f"## {name}", _doc(group), ""]
    for attribute, method in _methods(group):
        returned = inspect.signature(method.routine).return_annotation
        (inner,) = typing.get_args(returned)[2:] if isinstance(method, api_method) else typing.get_args(returned)
        shown = _shown(inner, models)
        if isinstance(method, api_stream):
            shown = f"iterator of {shown}"
        lines += _entry(f"{name}.{attribute}{_signature(method.routine, models)}", shown, _doc(method.routine))
    return "\n".join(lines)


def _methods(group: type) -> Iterator[tuple[str, Any]]:
    for kind in reversed(group.__mro__):
        for name, value in vars(kind).items():
            if isinstance(value, api_method | api_stream) and not name.startswith("_"):
                yield name, value


def _entry(call: str, returned: str, doc: str) -> list[str]:
    return [f"### `{call.partition('(')[0]}`", f"`{call}` → {returned}", doc, ""]


def _options() -> str:
    notes = _notes(reserve_options.ReserveOptions)
    hints = typing.get_type_hints(reserve_options.ReserveOptions)
    rows = [f"| `{name}` | `{_plain(hint)}` | {notes[name]} |" for name, hint in hints.items()]
    head = "Keyword arguments of `reserve` and `submit`. All are optional."
    return "\n".join(["## Options", head, "", "| name | type | meaning |", "|---|---|---|", *rows])


def _errors() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ClientError)]
    rows = [f"| `{kind.__name__}` | `{_parent(kind)}` | `{kind.usual_code}` | {_doc(kind)} |" for kind in kinds]
    head = (
        "All can be imported from `gpudev`. Each has `message` and `next_step` (sentences for people), `code` (for\n"
        "programs: the API's code, or the usual one below) and `problem` (the API's problem+json, or empty)."
    )
    return "\n".join(["## Errors", head, "", "| error | is a | usual code | meaning |", "|---|---|---|---|", *rows])


def _parent(kind: type) -> str:
    return kind.__bases__[0].__name__


def _models(models: dict[str, type]) -> str:
    lines = ["## Models", "Responses of the API, as dataclasses. A newer server may send more fields.", ""]
    done: set[str] = set()
    while fresh := sorted(set(models) - done):
        for name in fresh:
            done.add(name)
            lines += _model(models[name], models)
    return "\n".join(lines)


def _model(model: type, models: dict[str, type]) -> list[str]:
    lines = [f"### {model.__name__}", _doc(model), ""]
    if model.__doc__ is None or model.__doc__.startswith(f"{model.__name__}("):
        lines = lines[:2]
    rows = [
        f"| `{field.name}` | {_shown(field.type, models)} | {field.metadata.get('description', '')} |"
        for field in dataclasses.fields(model)
    ]
    return [*lines, "| field | type | meaning |", "|---|---|---|", *rows, ""]


def _signature(function: Callable[..., Any], models: dict[str, type]) -> str:
    shown: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            shown.append("**options")
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            shown.append(f"*{parameter.name}: {_plain(parameter.annotation)}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        shown.append(f"{parameter.name}: {_plain(parameter.annotation)}{default}")
    return f"({', '.join(shown)})"


def _shown(kind: Any, models: dict[str, type]) -> str:
    """The type as text with links; adds its models to `models`."""
    for model in _inside(kind):
        models[model.__name__] = model
    text = _plain(kind)
    linked = re.sub(r"\w+", lambda found: _link(found[0], models), text)
    return linked if linked != text else f"`{text}`"


def _link(word: str, models: dict[str, type]) -> str:
    return f"[{word}](#{word.lower()})" if word in models else word


def _inside(kind: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        yield kind
    for argument in typing.get_args(kind):
        if not isinstance(argument, list):
            yield from _inside(argument)


def _plain(kind: Any) -> str:
    """The type as source text, the same in every Python version."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is None or kind is type(None):
        return "None"
    if kind is ...:
        return "..."
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_plain(each) for each in arguments)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None and origin.__name__ == "Callable":
        taken = ", ".join(_plain(each) for each in arguments[0])
        return f"Callable[[{taken}], {_plain(arguments[1])}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_plain(each) for each in arguments)}]"
    return str(getattr(kind, "__name__", kind))


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return re.sub(r"\s*\n(?!\n)\s*", " ", text).strip()


def _notes(kind: type) -> dict[str, str]:
    """The docstring below each field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    notes: dict[str, str] = {}
    for field, note in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            notes[field.target.id] = str(note.value.value).replace("\n    ", " ")
    return notes
