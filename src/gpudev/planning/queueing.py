"""The queue's plan: who starts now and where, and for everybody else position, start and the reason they wait."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpudev.domain.capacity import Holding, Node
from gpudev.planning.plan import Plan, Request

DEFAULT_MARGIN = timedelta(seconds=30)


def plan_queue(
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
    queue: Sequence[Request],
    now: datetime,
    margin: timedelta = DEFAULT_MARGIN,
) -> Plan:
    raise NotImplementedError
