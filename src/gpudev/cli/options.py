"""Shared options and parameter types of the commands."""

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_F = TypeVar("_F", bound=Callable[..., Any])
_ID = r"[0-9a-fA-F-]{4,36}"
_DISK = r"[a-z0-9-]{1,63}"


class ReservationId(click.ParamType):  # type: ignore[type-arg]  # generic only in later versions of click
    """A reservation id or a prefix of one; the server checks that it is unique."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not re.fullmatch(_ID, text):
            shown = text[:80].encode("ascii", "backslashreplace").decode()
            self.fail(f"invalid reservation id '{shown}' (expected 4 or more hex digits, as `gpu-dev list` shows)")
        return text.lower()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from gpudev.cli.shell_completion import complete_reservation_ids

        return [CompletionItem(short, help=text) for short, text in complete_reservation_ids(incomplete)]


class DiskName(click.ParamType):  # type: ignore[type-arg]
    """A disk name; the disk may not exist yet."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not re.fullmatch(_DISK, text):
            shown = text[:80].encode("ascii", "backslashreplace").decode()
            self.fail(f"invalid disk name '{shown}' (expected 1 to 63 of a-z, 0-9 and '-')", param, ctx)
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from gpudev.cli.shell_completion import complete_disk_names

        deleted = ctx.info_name == "restore"
        return [CompletionItem(name, help=text) for name, text in complete_disk_names(incomplete, deleted=deleted)]


class ObjectId(click.ParamType):  # type: ignore[type-arg]
    """An object id or a prefix of one; the server checks that it is unique."""

    name = "id"

    def __init__(self, kind: str, shown_by: str) -> None:
        self._kind = kind
        self._shown_by = shown_by

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not re.fullmatch(_ID, text):
            shown = text[:80].encode("ascii", "backslashreplace").decode()
            self.fail(f"invalid {self._kind} id '{shown}' (expected 4 or more hex digits, as {self._shown_by} shows)")
        return text.lower()


class Hours(click.ParamType):  # type: ignore[type-arg]
    """A number of hours; the server checks the limit."""

    name = "hours"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            hours = float(value)
        except ValueError:
            hours = math.nan
        if not math.isfinite(hours) or hours <= 0:
            self.fail(f"invalid number of hours {str(value)[:80]!r} (expected e.g. 4 or 0.5)", param, ctx)
        return hours


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration such as 90m, 2h or 1d, converted to hours; a bare number means hours."""

    name = "time"
    _HOURS: ClassVar[dict[str, float]] = {"m": 1 / 60, "h": 1, "d": 24, "": 1}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([mhd]?)", str(value).strip().lower())
        hours = float(found[1]) * self._HOURS[found[2]] if found else 0.0
        if hours <= 0:
            self.fail(f"invalid duration {str(value)[:80]!r} (expected e.g. 90m, 2h or 1d)", param, ctx)
        return hours


class PlainText(click.ParamType):  # type: ignore[type-arg]
    """One printable line of text."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text or not text.isprintable():
            self.fail("invalid text (expected one printable line)", param, ctx)
        return text


ID = ReservationId()
DISK = DiskName()
SNAPSHOT = ObjectId("snapshot", "`gpu-dev disk snapshots`")
DISK_ID = ObjectId("disk", "`gpu-dev disk list --deleted`")
HOURS = Hours()
DURATION = Duration()
TEXT = PlainText()


def api_options(function: _F) -> _F:
    """Options of every command that calls the API."""
    function = click.option("--api-url", metavar="URL", help="API address; overrides all settings.")(function)
    return click.option("--json", "as_json", is_flag=True, help="Print the API's response as JSON and nothing else.")(
        function
    )
