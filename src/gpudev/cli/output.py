"""What reaches the screen: text made safe for a terminal, colour where it is wanted, JSON untouched."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

# C0 and C1 controls, and what turns the direction of text: a name somebody chose must not drive a terminal.
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "?")
_CONTROLS_BUT_NEWLINE = {code: sign for code, sign in _CONTROLS.items() if code != 0x0A}
_NARROWEST = 12
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


def configure() -> None:
    """No character is worth an error: what the locale cannot show is shown as a question mark."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def clean(text: object) -> str:
    """One line of harmless text."""
    return str(text).translate(_CONTROLS)


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def tell(text: str) -> None:
    """To the person, beside the output proper. Whatever was written before comes out first, if it can."""
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.write(text.translate(_CONTROLS_BUT_NEWLINE) + "\n")
    sys.stderr.flush()


def say_json(raw: bytes) -> None:
    """The API's answer, byte for byte, and a line's end."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw.rstrip(b"\n") + b"\n")
    sys.stdout.flush()


def stdout_is_terminal() -> bool:
    """A terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def terminal_columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def can_ask() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def wants_colour() -> bool:
    return stdout_is_terminal() and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str | None) -> str:
    if colour is None or not wants_colour():
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], colours: Sequence[str | None] = ()) -> str:
    """Columns of plain text, two spaces apart; `colours` paints each row's second column."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(_width(row[i]) for row in (header, *cleaned)) for i in range(len(header))]
    if stdout_is_terminal():
        # What does not fit would wrap and tear the columns apart; piped elsewhere, everything is there.
        room = terminal_columns() - sum(widths[:-1]) - 2 * (len(widths) - 1)
        widths[-1] = max(_NARROWEST, min(widths[-1], room))
        cleaned = [[*row[:-1], cut(row[-1], widths[-1])] for row in cleaned]
    lines = [paint(_aligned(header, widths), "bold")]
    for index, row in enumerate(cleaned):
        cells = [_padded(cell, width) for cell, width in zip(row, widths, strict=True)]
        if colours:
            cells[1] = paint(cells[1], colours[index])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def cut(text: str, width: int) -> str:
    """As much of it as fits into so many columns."""
    if text.isascii():
        return text[:width]
    while _width(text) > width:
        text = text[:-1]
    return text


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_padded(cell, width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _padded(cell: str, width: int) -> str:
    return cell + " " * max(0, width - _width(cell))


def _width(text: str) -> int:
    """Columns on a screen."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)
