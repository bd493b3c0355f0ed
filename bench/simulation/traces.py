"""Synthetic traces: arrivals, GPUs, requested and used time.

Modelled on published GPU clusters. Most requests are for one GPU, and large ones take most of the GPU time; durations
are heavy-tailed over minutes to a day; many end within minutes because of a failure; fewer arrive at night, at noon and
at weekends (Philly: Jeon et al., USENIX ATC 2019; Helios: Hu et al., SC 2021). Users request round numbers of hours,
far more than they use, and some run into the end of their time (Tsafrir, JSSPP 2010). Knows nothing about schedulers.
The same seed gives the same trace.
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
"""Requested hours: round numbers, as in published logs."""
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
    """The most seconds that preparation and teardown take together."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.units


@dataclass(frozen=True, slots=True)
class People:
    """How long users need a machine, and how much they overstate it."""

    median_need: float = 0.9 * HOUR
    spread: float = 1.4
    """Standard deviation of the logarithm of the need: the tail."""
    overstating: float = 0.7
    """Mean of the logarithm of requested over needed time; users who request too little run into the end."""
    uncertainty: float = 0.8
    take_default: float = 0.3
    """The share of users who take the default."""
    fail_early: float = 0.12
    """The share that ends within minutes."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request, and what no scheduler knows in advance: `used`, `preparing` and `clearing`. All in seconds."""

    number: int
    """In order of arrival."""
    arrives: int
    units: int
    nodes: int
    requested: int
    used: int
    preparing: int = 0
    clearing: int = 0

    @property
    def gpus(self) -> int:
        return self.units * self.nodes

    @property
    def occupies(self) -> int:
        """How long its GPUs are really in use."""
        return self.preparing + self.used + self.clearing


def make_trace(seed: int, load: float, days: float, people: People, cluster: Cluster) -> list[Job]:
    """`load`: the used GPU time as a share of the cluster's capacity in these days."""
    dice = random.Random(seed)
    wanted = load * days * DAY * cluster.gpus
    shapes = []
    while wanted > 0:
        units, nodes = dice.choices(_SHAPES, _SHARE_OF_SHAPES)[0]
        requested, used = _durations(dice, people)
        shapes.append((units, nodes, requested, used))
        wanted -= used * units * nodes
    arrivals = sorted(_arrival(dice, days) for _ in shapes)
    half = cluster.margin // 2
    return [
        Job(number, arrives, units, nodes, requested, used, dice.randint(1, half), dice.randint(1, half))
        for number, (arrives, (units, nodes, requested, used)) in enumerate(zip(arrivals, shapes, strict=True))
    ]


def _durations(dice: random.Random, people: People) -> tuple[int, int]:
    """(requested, used)."""
    need = people.median_need * math.exp(dice.gauss(0, people.spread))
    if dice.random() < people.take_default:
        guess: float = _DEFAULT
    else:
        guess = need * math.exp(dice.gauss(people.overstating, people.uncertainty))
    requested = next((offer for offer in _MENU if offer >= guess), _MENU[-1])
    if dice.random() < people.fail_early:
        need = dice.uniform(_LEAST_USE, 300)
    return requested, max(_LEAST_USE, min(requested, round(need)))


def _arrival(dice: random.Random, days: float) -> int:
    """A random time of the trace, weighted by how busy its hour is. The trace begins on a Monday at midnight."""
    while True:
        moment = dice.uniform(0, days * DAY)
        busy = _BY_HOUR[int(moment % DAY // HOUR)] / max(_BY_HOUR)
        if int(moment // DAY) % 7 >= 5:
            busy *= _WEEKEND
        if dice.random() < busy:
            return int(moment)
