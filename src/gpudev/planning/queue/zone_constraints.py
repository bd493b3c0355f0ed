"""Where each request may be placed: everywhere, or near its disk. Looks only at the nodes' zones; who is free when is
the timetable's to know.

A disk's volume cannot leave its zone. Where it can be made anew elsewhere, whoever waits for it may go elsewhere too,
if being given a place there and waiting for the volume is faster than waiting for a place at home.
"""

from collections.abc import Iterable, Sequence

from gpudev.domain.cluster import Anchor, Node
from gpudev.planning.facts import microseconds
from gpudev.planning.queue.node_timelines import Place, Timetable
from gpudev.planning.queue.plan import Request

Ranks = frozenset[int]


class Grounds:
    def __init__(self, nodes: Sequence[Node]) -> None:
        """`nodes` by rank."""
        self._nodes = nodes
        self._ranks: dict[frozenset[str], Ranks] = {}

    def at_home(self, zones: frozenset[str]) -> Ranks:
        """The nodes in these zones, and those to which zones mean nothing."""
        ranks = self._ranks.get(zones)
        if ranks is None:
            ranks = frozenset(rank for rank, node in enumerate(self._nodes) if node.zone is None or node.zone in zones)
            self._ranks[zones] = ranks
        return ranks

    def allow(self, request: Request, ranks: Iterable[int]) -> bool:
        anchor = request.anchor
        return anchor is None or anchor.move is not None or self.at_home(anchor.zones).issuperset(ranks)

    def is_away(self, request: Request, place: Place | None) -> bool:
        anchor = request.anchor
        return anchor is not None and place is not None and not self.at_home(anchor.zones).issuperset(place.ranks)

    def find(self, timetable: Timetable, request: Request, duration: int) -> Place | None:
        """The earliest place, or the one by which it is ready the earliest. None: there will never be one."""
        anchor, units, node_count = request.anchor, request.units_per_node, request.node_count
        if anchor is None:
            return timetable.find(units, node_count, duration)
        home = timetable.find(units, node_count, duration, self.at_home(anchor.zones))
        if anchor.move is None or (home is not None and home.start <= timetable.now):
            return home
        away = timetable.find(units, node_count, duration)
        return away if away is not None and is_faster(anchor, home, away) else home

    def counted(self, request: Request, place: Place | None) -> Ranks | None:
        """Among which nodes its place was looked for; None: all of them."""
        if request.anchor is None or self.is_away(request, place):
            return None
        return self.at_home(request.anchor.zones)


def is_faster(anchor: Anchor, home: Place | None, away: Place) -> bool:
    """Whether moving the disk takes less time than waiting for a place where it is."""
    if anchor.move is None:
        return False
    return home is None or away.start + microseconds(anchor.move) < home.start
