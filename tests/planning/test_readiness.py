"""What is seen of a dev server, and what it means for its reservation."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.domain.reservations.command_exit import RunEnd
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.reservations.readiness import (
    Activate,
    Fail,
    Finish,
    Launch,
    Nothing,
    Progress,
    Readiness,
    Reconnect,
    decide_readiness,
)
from gpudev.ports.cluster import Phase, ServerSeen
from gpudev.settings import Timing
from planning.reservations import ELSEWHERE, HERE, active, preparing
from planning.situations import NOW, rid

TIMING = Timing(preparing_deadline=timedelta(minutes=15))
DEADLINE = NOW + timedelta(minutes=14)
"""Preparing began a minute ago."""
SOON = NOW + timedelta(seconds=3)
LONG_AGO = NOW - timedelta(minutes=15)

STARTING = ServerSeen(rid(1), Phase.STARTING, step="starting the ssh server")
STARTING_AS_KNOWN = ServerSeen(rid(1), Phase.STARTING, step="starting the dev server")
READY = ServerSeen(rid(1), Phase.READY, connection=HERE)
READY_ELSEWHERE = ServerSeen(rid(1), Phase.READY, connection=ELSEWHERE)
READY_SOMEHOW = ServerSeen(rid(1), Phase.READY)
DIED = ServerSeen(rid(1), Phase.DEAD, reason="out of memory: killed by the kernel")
DIED_SILENTLY = ServerSeen(rid(1), Phase.DEAD)
LOST = ServerSeen(rid(1), Phase.DEAD, reason="the machine was restarted", lost_unwatched=True)
RUN_END = RunEnd(3, ("out of memory",))
FINISHED = replace(DIED, run_end=RUN_END)
FINISHED_UNSEEN = replace(LOST, run_end=RUN_END)

TABLE: list[tuple[str, Reservation, ServerSeen | None, Readiness]] = [
    ("ready: it becomes active", preparing(), READY, Activate(HERE)),
    ("ready, even past the deadline", preparing(preparing_at=LONG_AGO), READY, Activate(HERE)),
    ("ready without an address is not yet ready", preparing(), READY_SOMEHOW, Nothing(DEADLINE)),
    ("a new step is told", preparing(), STARTING, Progress("starting the ssh server")),
    ("a known step is not told again", preparing(), STARTING_AS_KNOWN, Nothing(DEADLINE)),
    ("not there: it is launched", preparing(), None, Launch(restart=False)),
    ("not there, next attempt due", preparing(next_attempt_at=NOW), None, Launch(restart=False)),
    ("not there, next attempt later", preparing(next_attempt_at=SOON), None, Nothing(SOON)),
    ("next attempt after the deadline", preparing(next_attempt_at=DEADLINE + timedelta(1)), None, Nothing(DEADLINE)),
    ("dead while preparing", preparing(), DIED, Fail("out of memory: killed by the kernel")),
    ("dead without a word", preparing(), DIED_SILENTLY, Fail("the dev server ended without saying why")),
    ("lost while nobody watched: again", preparing(), LOST, Launch(restart=False)),
    ("deadline passed while starting", preparing(preparing_at=LONG_AGO), STARTING,
     Fail("not ready within 15 minutes; last seen: starting the ssh server")),
    ("deadline passed, never seen", preparing(preparing_at=LONG_AGO), None,
     Fail("not ready within 15 minutes; last seen: starting the dev server")),
    ("deadline passed, nothing known", preparing(preparing_at=LONG_AGO, step=None), None,
     Fail("not ready within 15 minutes")),
    ("deadline passed, lost", preparing(preparing_at=LONG_AGO), LOST,
     Fail("not ready within 15 minutes; last seen: the machine was restarted")),
    ("active and well", active(), READY, Nothing(None)),
    ("active, reached another way", active(), READY_ELSEWHERE, Reconnect(ELSEWHERE)),
    ("active again the same way", active(step="starting again"), READY, Reconnect(HERE)),
    ("active, address unknown for now", active(), READY_SOMEHOW, Nothing(None)),
    ("active, being started again", active(), STARTING, Nothing(None)),
    ("active and dead", active(), DIED, Fail("out of memory: killed by the kernel")),
    ("active and lost while nobody watched", active(), LOST, Launch(restart=True)),
    ("active and lost, next attempt later", active(next_attempt_at=SOON), LOST, Nothing(SOON)),
    ("active, and its command has ended", active(), FINISHED, Finish(RUN_END)),
    ("active, and its command ended while nobody watched", active(), FINISHED_UNSEEN, Finish(RUN_END)),
    ("its command has ended with no time left: expiry's business", active(0), FINISHED, Nothing(None)),
    ("active and definitely not there", active(), None, Launch(restart=True)),
    ("lost with no time left: expiry's business", active(0), LOST, Nothing(None)),
    ("gone with no time left: expiry's business", active(-1), None, Nothing(None)),
    ("dead with no time left: expiry's business", active(-1), DIED, Nothing(None)),
]  # fmt: skip


@pytest.mark.parametrize(("reservation", "seen", "decision"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_is_seen_decides(reservation: Reservation, seen: ServerSeen | None, decision: Readiness) -> None:
    assert decide_readiness(reservation, seen, NOW, TIMING) == decision


@pytest.mark.parametrize("seen", [None, READY, STARTING, DIED, LOST])
@pytest.mark.parametrize("status", [s for s in Status if not s.holds_capacity])
def test_only_those_with_a_place_are_looked_at(status: Status, seen: ServerSeen | None) -> None:
    assert decide_readiness(active(status=status), seen, NOW, TIMING) == Nothing(None)


def test_a_short_deadline_is_told_in_seconds() -> None:
    timing = Timing(preparing_deadline=timedelta(seconds=20))
    assert decide_readiness(preparing(step=None), None, NOW, timing) == Fail("not ready within 20 seconds")
