"""Shared options and parameter types of the commands."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_F = TypeVar("_F", bound=Callable[..., Any])
_ID = r"[0-9a-fA-F-]{4,36}"
_DISK = r"[a-z0-9-]{1,63}"
_LONGEST_NAME = 63
_MOST_ID_DIGITS = 32
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})"
DURATION_FORMS = "e.g. 90m, 2h, 1h30 or 1d; a number alone means hours"


class ReservationId(click.ParamType):  # type: ignore[type-arg]  # generic only in later versions of click
    """A reservation id, a prefix of one, or a name; `job_selection` finds the reservation."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if is_id(text):
            return text
        if not 1 <= len(text) <= _LONGEST_NAME or not text.isprintable() or "/" in text:
            shown = text[:80].encode("ascii", "backslashreplace").decode()
            self.fail(
                f"invalid reservation id '{shown}' (expected an id or a name, as `gpu-dev list` shows)", param, ctx
            )
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from gpudev.cli.shell_completion import complete_reservation_ids

        return [CompletionItem(short, help=text) for short, text in complete_reservation_ids(incomplete)]


def is_id(text: str) -> bool:
    """Whether the API may take this for an id or a prefix of one. A name may look the same."""
    return re.fullmatch(_ID, text) is not None and 4 <= len(text.replace("-", "")) <= _MOST_ID_DIGITS


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


def parse_hours(text: str) -> float | None:
    """Hours from 4, 0.5, 90m, 2h, 1h30, 1h30m, 1d12h or '1 h 30 min'; a bare number means hours. None: invalid."""
    compact = _remove_spaces(text).lower()
    if re.fullmatch(_NUMBER, compact):
        compact += "h"
    elif re.search(r"h[0-9]+$", compact):  # 1h30
        compact += "m"
    parts = re.fullmatch(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?:in)?)?", compact)
    if parts is None:
        return None
    days, hours, minutes = (float(part or 0) for part in parts.groups())
    return 24 * days + hours + minutes / 60 or None


def parse_gigabytes(text: str) -> int | None:
    """Gigabytes from 200, 200G, 200GB or 2T; a bare number means gigabytes. None: invalid."""
    found = re.fullmatch(r"([0-9]{1,9})(|[gt](?:i?b)?)", _remove_spaces(text).lower())
    if found is None or int(found[1]) == 0:
        return None
    return int(found[1]) * (1024 if found[2].startswith("t") else 1)


def _remove_spaces(text: str) -> str:
    """Those between a number and its unit: '1 2' stays two numbers."""
    return re.sub(r"(?<![0-9.]) | (?![0-9.])", "", " ".join(text.split()))


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration, converted to hours; the server checks the limit."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        hours = parse_hours(str(value))
        if hours is None:
            self.fail(f"invalid duration {str(value)[:80]!r} (expected {DURATION_FORMS})", param, ctx)
        return hours


class DiskSize(click.ParamType):  # type: ignore[type-arg]
    """A size, converted to gigabytes; the server checks the limit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size = parse_gigabytes(str(value))
        if size is None:
            self.fail(f"invalid size {str(value)[:80]!r} (expected e.g. 200, 200G or 2T)", param, ctx)
        return size


class GpuTypeName(click.ParamType):  # type: ignore[type-arg]
    """A GPU type, in any case; the server checks that it exists."""

    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return TEXT.convert(value, param, ctx).lower()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from gpudev.cli.shell_completion import complete_gpu_types

        return [CompletionItem(name, help=text) for name, text in complete_gpu_types(incomplete)]


class SnapshotId(ObjectId):
    """A snapshot of the disk that the same command line names."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from gpudev.cli.shell_completion import complete_snapshots

        disk = ctx.params.get("name")
        found = complete_snapshots(disk, incomplete) if isinstance(disk, str) else []
        return [CompletionItem(short, help=text) for short, text in found]


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
SNAPSHOT = SnapshotId("snapshot", "`gpu-dev disk snapshots`")
DISK_ID = ObjectId("disk", "`gpu-dev disk list --deleted`")
DURATION = Duration()
SIZE = DiskSize()
TEXT = PlainText()
GPU_TYPE = GpuTypeName()


def api_options(function: _F) -> _F:
    """Options of every command that calls the API."""
    function = click.option("--api-url", metavar="URL", help="API address; overrides all settings.")(function)
    return click.option("--json", "as_json", is_flag=True, help="Print the API's response as JSON and nothing else.")(
        function
    )


# Sections of long help pages.


_SECTIONS = {
    "Hardware and time": ("gpus", "gpu_type", "hours", "name", "image"),
    "Files": ("disk", "folder", "no_copy", "results"),
    "Login": ("github_user", "key_file"),
    "Set-up": ("variables", "env_files", "dotfiles", "startup_script"),
    "Waiting": ("max_wait", "no_wait", "detach", "keep", "yes"),
}


class SectionedCommand(click.Command):
    """Its help page shows options in sections; those of no section come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {str(one.name): record for one in self.get_params(ctx) if (record := one.get_help_record(ctx))}
        for title, names in _SECTIONS.items():
            if rows := [records.pop(name) for name in names if name in records]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if records:
            with formatter.section("Other options"):
                formatter.write_dl(list(records.values()))
