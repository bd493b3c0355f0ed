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

# Collects and checks variables, dotfiles and the start-up script before anything is sent. Messages contain names and
# never values, which may be secret.


NONE = "none"
"""As a repository or a file: ignore the preference this time."""
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
    """Later files override earlier ones; `variables` (NAME=VALUE, or NAME to copy from `environ`) override all files.
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
    """Parse NAME=VALUE lines. Ignores empty lines and lines that begin with #. A quoted value may span several lines:
    single quotes are literal; double quotes interpret \\n, \\t, \\" and \\\\. $NAME is never expanded."""
    text = text.replace("\r\n", "\n")
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        end = _end_of_line(text, position)
        line = text[position:end].strip()
        if not line or line.startswith("#"):
            position = end + 1
            continue
        match = _VARIABLE_LINE.match(text, position)
        if match is None:
            raise UsageError(f"{name}, line {_line_number(text, position)}: expected NAME=VALUE")
        found[match[1]], position = _parse_value(text, match.end(), name)
    return found


def _parse_value(text: str, start: int, name: str) -> tuple[str, int]:
    """The value at this position, and the position of the next line."""
    first = text[start : start + 1]
    if first and first in "'\"":
        quoted = (_SINGLE if first == "'" else _DOUBLE).match(text, start)
        if quoted is None:
            raise UsageError(f"{name}, line {_line_number(text, start)}: missing closing quote")
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
        name, has_value, value = one.partition("=")
        try:
            check_variable(name)
        except Invalid as error:
            raise UsageError(error.message) from error
        if not has_value and name not in environ:
            raise UsageError(f"{name} is not set in this environment", f"Set it, or give its value: --env {name}=VALUE")
        given[name] = value if has_value else environ[name]
    return given


def _read_text(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise LocalError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise LocalError(f"{path} is larger than {most // 1024} KiB")
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
    """Options of every command that starts dev servers, for `choose_personalization`."""
    for option in (
        click.option(
            "--startup-script",
            metavar="FILE",
            help="Script to run when the dev server is ready; 'none' for none this time.",
        ),
        click.option("--dotfiles", metavar="URL", help="Git repository of your dotfiles; 'none' for none this time."),
        click.option(
            "--env-file",
            "env_files",
            metavar="FILE",
            multiple=True,
            help="File of NAME=VALUE lines; repeat for more; 'none' ignores the one in your settings.",
        ),
        click.option(
            "--env",
            "variables",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="Environment variable; without VALUE, copied from here. Repeat for more.",
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
    preferences = session.preferences
    files = [preferences.env_file, *env_files]
    if NONE in env_files:
        files = list(env_files)
    script = startup_script or preferences.startup_script
    return collect_personalization(
        env_files=[Path(name) for name in files if name is not None and name != NONE],
        variables=variables,
        dotfiles=_unless_none(dotfiles or preferences.dotfiles),
        startup_script=None if _unless_none(script) is None else Path(str(script)),
        environ=session.env,
    )


def _unless_none(text: str | None) -> str | None:
    return None if text == NONE else text
