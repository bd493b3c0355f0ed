"""Options and preferences for personalization."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gpudev.cli.command_session import CommandSession
from gpudev.domain.errors import Invalid
from gpudev.domain.reservations.personalization import (
    MAX_ENVIRONMENT_BYTES,
    MAX_SCRIPT_BYTES,
    Personalization,
    check_personalization,
    check_variable,
)
from gpudev.sdk.errors import LocalError, UsageError

# What a person brings to a new dev server: variables from files and options, dotfiles, a start-up script.
#
# It gathers and checks before anything is sent. No sentence here holds a value: whoever reads a terminal or a log over
# somebody's shoulder sees names only.


NONE = "none"
"""As a repository or a file: none this time, whatever the settings say."""
_VARIABLE_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=", re.ASCII)
_SINGLE = re.compile(r"'([^']*)'[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*(?:#[^\n]*)?(?:\n|\Z)', re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def collect_personalization(
    *,
    env_files: Sequence[Path] = (),
    variables: Sequence[str] = (),
    dotfiles: str | None = None,
    startup_script: Path | None = None,
    environ: Mapping[str, str],
) -> Personalization:
    """Later files win over earlier ones, and `variables` (NAME=VALUE, or NAME as it is in `environ`) over all files.
    Raises UsageError or LocalError."""
    environment: dict[str, str] = {}
    for path in env_files:
        environment |= parse_env_file(_read_text(path, MAX_ENVIRONMENT_BYTES * 2), str(path))
    environment |= _given_variables(variables, environ)
    script = None if startup_script is None else _read_text(startup_script, MAX_SCRIPT_BYTES)
    try:
        return check_personalization(Personalization(environment, dotfiles, script))
    except Invalid as error:
        raise UsageError(error.message) from error


def parse_env_file(text: str, name: str) -> dict[str, str]:
    """NAME=VALUE lines; empty ones and those that begin with # say nothing. A value in quotes may have several lines:
    in single ones it stands to the letter, in double ones \\n, \\t, \\" and \\\\ are one letter each. Nothing is ever
    filled in for $NAME."""
    text = text.replace("\r\n", "\n")
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        end = _end_of_line(text, position)
        line = text[position:end].strip()
        if not line or line.startswith("#"):
            position = end + 1
            continue
        begins = _VARIABLE_LINE.match(text, position)
        if begins is None:
            raise UsageError(f"{name}, line {_line_number(text, position)}: this is no NAME=VALUE")
        found[begins[1]], position = _parse_value(text, begins.end(), name)
    return found


def _parse_value(text: str, start: int, name: str) -> tuple[str, int]:
    """The value that begins there, and where the next line does."""
    first = text[start : start + 1]
    if first and first in "'\"":
        quoted = (_SINGLE if first == "'" else _DOUBLE).match(text, start)
        if quoted is None:
            raise UsageError(f"{name}, line {_line_number(text, start)}: the quotes of this value do not end")
        value = quoted[1] if first == "'" else re.sub(r"\\(.)", _unescaped, quoted[1], flags=re.DOTALL)
        return value, quoted.end()
    end = _end_of_line(text, start)
    return text[start:end].strip(), end + 1


def _unescaped(found: "re.Match[str]") -> str:
    letter = found[1]
    return _ESCAPES.get(letter, letter if letter in '"\\$`' else f"\\{letter}")


def _given_variables(variables: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    given = {}
    for one in variables:
        name, is_said, value = one.partition("=")
        try:
            check_variable(name)
        except Invalid as error:
            raise UsageError(error.message) from error
        if not is_said and name not in environ:
            raise UsageError(f"{name} is not set here", f"Set it, or give its value: --env {name}=VALUE")
        given[name] = value if is_said else environ[name]
    return given


def _read_text(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise LocalError(f"{path} is longer than {most // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LocalError(f"{path} is not UTF-8 text") from error


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


_F = TypeVar("_F", bound=Callable[..., Any])


def personalization_options(function: _F) -> _F:
    """For every command that starts dev servers; `chosen` takes them."""
    for option in (
        click.option(
            "--startup-script", metavar="FILE", help="Run this there when it is ready; 'none' for none this time."
        ),
        click.option("--dotfiles", metavar="URL", help="Your dotfiles' git repository; 'none' for none this time."),
        click.option(
            "--env-file",
            "env_files",
            metavar="FILE",
            multiple=True,
            help="Variables for it, NAME=VALUE lines; may be given again; 'none' for none of the settings'.",
        ),
        click.option(
            "--env",
            "variables",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="A variable for it, or one you have here; may be given again.",
        ),
    ):
        function = option(function)
    return function


def choose_personalization(
    session: CommandSession,
    *,
    variables: tuple[str, ...] = (),
    env_files: tuple[str, ...] = (),
    dotfiles: str | None = None,
    startup_script: str | None = None,
) -> Personalization:
    usual = session.preferences
    files = [usual.env_file, *env_files]
    if NONE in env_files:
        files = list(env_files)
    script = startup_script or usual.startup_script
    return collect_personalization(
        env_files=[Path(name) for name in files if name is not None and name != NONE],
        variables=variables,
        dotfiles=_unless_none(dotfiles or usual.dotfiles),
        startup_script=None if _unless_none(script) is None else Path(str(script)),
        environ=session.env,
    )


def _unless_none(text: str | None) -> str | None:
    return None if text == NONE else text
