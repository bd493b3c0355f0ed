"""Simple SVG charts: axes, curves, dots and a legend are all that the documentation needs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 44, 52
_FONT = "font-family='system-ui, sans-serif' font-size='13' fill='#333'"


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    least: float
    most: float
    marks: Sequence[tuple[float, str]]
    """Positions and texts of the labels."""
    logarithmic: bool = False

    def part(self, value: float) -> float:
        """The value's position on the axis, from 0 to 1, clamped to the ends."""
        value = min(self.most, max(self.least, value))
        if self.logarithmic:
            return math.log(value / self.least) / math.log(self.most / self.least)
        return (value - self.least) / (self.most - self.least)


@dataclass(slots=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    _parts: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str]] = field(default_factory=list)

    def curve(self, points: Iterable[tuple[float, float]], colour: str, name: str = "", dashed: bool = False) -> None:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._place, points))
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self._parts.append(f"<polyline points='{places}' fill='none' stroke='{colour}' stroke-width='2'{dash}/>")
        self._name(colour, name)

    def dots(self, points: Iterable[tuple[float, float]], colour: str, name: str = "", size: float = 2.2) -> None:
        circles = (f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{size}'/>" for x, y in map(self._place, points))
        self._parts.append(f"<g fill='{colour}' fill-opacity='0.5'>{''.join(circles)}</g>")
        self._name(colour, name)

    def band(self, low: float, high: float, colour: str, name: str = "") -> None:
        """A band over the whole width, between two heights."""
        (left, top), (right, bottom) = self._place((self.x.least, high)), self._place((self.x.most, low))
        box = f"x='{left:.1f}' y='{top:.1f}' width='{right - left:.1f}' height='{bottom - top:.1f}'"
        self._parts.insert(0, f"<rect {box} fill='{colour}'/>")
        self._name(colour, name)

    def svg(self) -> str:
        lines = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>",
            f"<title>{escape(self.title)}</title>",
            f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='white'/>",
            f"<text x='{_LEFT}' y='24' {_FONT} font-weight='bold'>{escape(self.title)}</text>",
            *self._grid(),
            *self._parts,
            *self._names(),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _place(self, point: tuple[float, float]) -> tuple[float, float]:
        return (
            _LEFT + self.x.part(point[0]) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - self.y.part(point[1]) * (_HEIGHT - _TOP - _BOTTOM),
        )

    def _grid(self) -> Iterable[str]:
        for value, text in self.x.marks:
            x, _ = self._place((value, self.y.least))
            yield f"<line x1='{x:.1f}' y1='{_TOP}' x2='{x:.1f}' y2='{_HEIGHT - _BOTTOM}' stroke='#e4e4e4'/>"
            yield f"<text x='{x:.1f}' y='{_HEIGHT - _BOTTOM + 18}' {_FONT} text-anchor='middle'>{escape(text)}</text>"
        for value, text in self.y.marks:
            _, y = self._place((self.x.least, value))
            yield f"<line x1='{_LEFT}' y1='{y:.1f}' x2='{_WIDTH - _RIGHT}' y2='{y:.1f}' stroke='#e4e4e4'/>"
            yield f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' {_FONT} text-anchor='end'>{escape(text)}</text>"
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        yield f"<text x='{middle}' y='{_HEIGHT - 12}' {_FONT} text-anchor='middle'>{escape(self.x.title)}</text>"
        y = (_TOP + _HEIGHT - _BOTTOM) / 2
        turned = f"transform='rotate(-90 16 {y})'"
        yield f"<text x='16' y='{y}' {turned} {_FONT} text-anchor='middle'>{escape(self.y.title)}</text>"

    def _name(self, colour: str, name: str) -> None:
        if name:
            self._legend.append((colour, name))

    def _names(self) -> Iterable[str]:
        """Right-aligned at the top, in line with the title."""
        x = _WIDTH - _RIGHT
        for colour, name in reversed(self._legend):
            x -= 7 * len(name)
            yield f"<text x='{x}' y='40' {_FONT}>{escape(name)}</text>"
            yield f"<rect x='{x - 16}' y='30' width='11' height='11' fill='{colour}'/>"
            x -= 32
