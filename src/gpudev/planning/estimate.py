"""The answer to a submit: where would this newcomer stand, before the processor has looked at it?"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpudev.domain.capacity import Holding, Node
from gpudev.planning.plan import Request, Start, Wait
from gpudev.planning.queueing import DEFAULT_MARGIN


def estimate(
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
    queue: Sequence[Request],
    newcomer: Request,
    now: datetime,
    *,
    margin: timedelta = DEFAULT_MARGIN,
) -> Start | Wait:
    raise NotImplementedError
