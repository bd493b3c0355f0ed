"""docs/spec.md, taken apart: requirements with their verdicts, and the commands that the documents print."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from support.paths import ROOT

PAGE = ROOT / "docs" / "spec.md"
_CELL_END = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Requirement:
    number: str
    section: str
    text: str
    verdict: str
    where: str
    held_by: str


@dataclass(frozen=True)
class PrintedCommand:
    documents: str
    command: str
    verdict: str
    note: str

    def pieces(self) -> list[str]:
        """Everything in it that can be typed."""
        return [*([] if self.verdict == "instead" else [self.command]), *code_in(self.note)]


def requirements() -> list[Requirement]:
    return [Requirement(*cells) for cells in _rows() if len(cells) == 6 and re.fullmatch(r"[A-E]\d+", cells[0])]


def printed_commands() -> list[PrintedCommand]:
    rows = (cells for cells in _rows() if len(cells) == 4 and re.fullmatch(r"[A-E](, [A-E])*", cells[0]))
    return [PrintedCommand(cells[0], *code_in(cells[1]), cells[2], cells[3]) for cells in rows]


def _rows() -> Iterator[list[str]]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in _CELL_END.split(line)[1:-1]]


def code_in(text: str) -> list[str]:
    return [code.replace(r"\|", "|") for code in re.findall(r"`([^`]+)`", text)]
