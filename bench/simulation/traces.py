"""Synthetic traces: who asks when for how much and for how long, and how long they really stay.

Shaped like what was published about GPU clusters. Most requests are for one GPU and the large ones take most of the
GPU time; durations are heavy-tailed over minutes to a day; many end within minutes because something failed; fewer
come at night, at noon and at weekends (Philly: Jeon et al., USENIX ATC 2019; Helios: Hu et al., SC 2021). People ask
for round numbers of hours, far more than they use, and some run into the end of their time (Tsafrir, JSSPP 2010).
It refuses to know schedulers. The same seed gives the same trace.
"""

import math
import random
from dataclasses import dataclass

HOUR = 3600
DAY = 24 * HOUR

_SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 3), (8, 4))
"""(GPUs per node, nodes)."""
_SHARE_OF_SHAPES = (56, 17, 12, 11, 2.4, 0.8, 0.8)
_MENU = tuple(round(hours * HOUR) for hours in (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24))
"""What people ask for: round numbers, as everywhere."""
_DEFAULT = 8 * HOUR
_LEAST_USE = 20
_BY_HOUR = (5, 4, 3, 2, 2, 2, 3, 4, 6, 9, 12, 13, 10, 11, 13, 13, 12, 11, 9, 9, 9, 9, 8, 6)
_WEEKEND = 0.5


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: int = 16
    units: int = 8
    """GPUs of each node."""
    margin: int = 30
    """Seconds that preparing and clearing together take at most."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.units


@dataclass(frozen=True, slots=True)
class People:
    """How long they need a machine, and how far they overstate it."""

    median_need: float = 0.9 * HOUR
    spread: float = 1.4
    """Of the logarithm of the need: the tail."""
    overstating: float = 0.7
    """Mean of the logarithm of asked over needed; whoever asks for less than they need runs into the end."""
    uncertainty: float = 0.8
    take_default: float = 0.3
    """How many do not think about it and take the default."""
    fail_early: float = 0.12
    """How many are gone within minutes."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request, and what only time will tell: `used`, `preparing` and `clearing`. All in seconds."""

    number: int
    """In order of arrival."""
    arrives: int
    units: int
    nodes: int
    asked: int
    used: int
    preparing: int = 0
    clearing: int = 0

    @property
    def gpus(self) -> int:
        return self.units * self.nodes

    @property
    def occupies(self) -> int:
        """How long its GPUs are really taken."""
        return self.preparing + self.used + self.clearing


def make_trace(seed: int, load: float, days: float, people: People, cluster: Cluster) -> list[Job]:
    """`load`: the GPU time that will be used, as a share of what the cluster has in those days."""
    dice = random.Random(seed)
    wanted = load * days * DAY * cluster.gpus
    shapes = []
    while wanted > 0:
        units, nodes = dice.choices(_SHAPES, _SHARE_OF_SHAPES)[0]
        asked, used = _stay(dice, people)
        shapes.append((units, nodes, asked, used))
        wanted -= used * units * nodes
    arrivals = sorted(_arrival(dice, days) for _ in shapes)
    half = cluster.margin // 2
    return [
        Job(number, arrives, units, nodes, asked, used, dice.randint(1, half), dice.randint(1, half))
        for number, (arrives, (units, nodes, asked, used)) in enumerate(zip(arrivals, shapes, strict=True))
    ]


def _stay(dice: random.Random, people: People) -> tuple[int, int]:
    """(asked, used)."""
    need = people.median_need * math.exp(dice.gauss(0, people.spread))
    if dice.random() < people.take_default:
        guess: float = _DEFAULT
    else:
        guess = need * math.exp(dice.gauss(people.overstating, people.uncertainty))
    asked = next((offer for offer in _MENU if offer >= guess), _MENU[-1])
    if dice.random() < people.fail_early:
        need = dice.uniform(_LEAST_USE, 300)
    return asked, max(_LEAST_USE, min(asked, round(need)))


def _arrival(dice: random.Random, days: float) -> int:
    """A moment of the trace, which begins on a Monday at midnight, as likely as its hour is busy."""
    while True:
        moment = dice.uniform(0, days * DAY)
        busy = _BY_HOUR[int(moment % DAY // HOUR)] / max(_BY_HOUR)
        if int(moment // DAY) % 7 >= 5:
            busy *= _WEEKEND
        if dice.random() < busy:
            return int(moment)
