"""What is seen of a dev server, and what it means for its reservation."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.domain.reservations.command_exit import CommandExit
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.reservations.readiness import (
    Activate,
    FailReservation,
    FinishReservation,
    LaunchServer,
    NoChange,
    Progress,
    Readiness,
    Reconnect,
    decide_readiness,
)
from gpudev.ports.cluster import ServerPhase, ServerState
from gpudev.settings import TimingSettings
from support.planner.reservation_factory import ELSEWHERE, HERE, active, preparing
from support.planner.situations import NOW, rid

TIMING = TimingSettings(preparing_deadline=timedelta(minutes=15))
DEADLINE = NOW + timedelta(minutes=14)
"""Preparing began a minute ago."""
SOON = NOW + timedelta(seconds=3)
LONG_AGO = NOW - timedelta(minutes=15)

STARTING = ServerState(rid(1), ServerPhase.STARTING, step="starting the ssh server")
STARTING_AS_KNOWN = ServerState(rid(1), ServerPhase.STARTING, step="starting the dev server")
READY = ServerState(rid(1), ServerPhase.READY, connection=HERE)
READY_ELSEWHERE = ServerState(rid(1), ServerPhase.READY, connection=ELSEWHERE)
READY_SOMEHOW = ServerState(rid(1), ServerPhase.READY)
DIED = ServerState(rid(1), ServerPhase.DEAD, reason="out of memory: killed by the kernel")
DIED_SILENTLY = ServerState(rid(1), ServerPhase.DEAD)
LOST = ServerState(rid(1), ServerPhase.DEAD, reason="the machine was restarted", is_restartable=True)
RUN_END = CommandExit(3, ("out of memory",))
FINISHED = replace(DIED, command_exit=RUN_END)
FINISHED_UNSEEN = replace(LOST, command_exit=RUN_END)

TABLE: list[tuple[str, Reservation, ServerState | None, Readiness]] = [
    ("ready: it becomes active", preparing(), READY, Activate(HERE)),
    ("ready, even past the deadline", preparing(preparing_at=LONG_AGO), READY, Activate(HERE)),
    ("ready without an address is not yet ready", preparing(), READY_SOMEHOW, NoChange(DEADLINE)),
    ("a new step is told", preparing(), STARTING, Progress("starting the ssh server")),
    ("a known step is not told again", preparing(), STARTING_AS_KNOWN, NoChange(DEADLINE)),
    ("not there: it is launched", preparing(), None, LaunchServer(restart=False)),
    ("not there, next attempt due", preparing(next_attempt_at=NOW), None, LaunchServer(restart=False)),
    ("not there, next attempt later", preparing(next_attempt_at=SOON), None, NoChange(SOON)),
    ("next attempt after the deadline", preparing(next_attempt_at=DEADLINE + timedelta(1)), None, NoChange(DEADLINE)),
    ("dead while preparing", preparing(), DIED, FailReservation("out of memory: killed by the kernel")),
    ("dead without a word", preparing(), DIED_SILENTLY, FailReservation("the dev server ended without a reason")),
    ("lost while nobody watched: again", preparing(), LOST, LaunchServer(restart=False)),
    ("deadline passed while starting", preparing(preparing_at=LONG_AGO), STARTING,
     FailReservation("not ready within 15 minutes; last step: starting the ssh server")),
    ("deadline passed, never seen", preparing(preparing_at=LONG_AGO), None,
     FailReservation("not ready within 15 minutes; last step: starting the dev server")),
    ("deadline passed, nothing known", preparing(preparing_at=LONG_AGO, step=None), None,
     FailReservation("not ready within 15 minutes")),
    ("deadline passed, lost", preparing(preparing_at=LONG_AGO), LOST,
     FailReservation("not ready within 15 minutes; last step: the machine was restarted")),
    ("active and well", active(), READY, NoChange(None)),
    ("active, reached another way", active(), READY_ELSEWHERE, Reconnect(ELSEWHERE)),
    ("active again the same way", active(step="starting again"), READY, Reconnect(HERE)),
    ("active, address unknown for now", active(), READY_SOMEHOW, NoChange(None)),
    ("active, being started again", active(), STARTING, NoChange(None)),
    ("active and dead", active(), DIED, FailReservation("out of memory: killed by the kernel")),
    ("active and lost while nobody watched", active(), LOST, LaunchServer(restart=True)),
    ("active and lost, next attempt later", active(next_attempt_at=SOON), LOST, NoChange(SOON)),
    ("active, and its command has ended", active(), FINISHED, FinishReservation(RUN_END)),
    ("active, and its command ended while nobody watched", active(), FINISHED_UNSEEN, FinishReservation(RUN_END)),
    ("its command has ended with no time left: expiry's business", active(0), FINISHED, NoChange(None)),
    ("active and definitely not there", active(), None, LaunchServer(restart=True)),
    ("lost with no time left: expiry's business", active(0), LOST, NoChange(None)),
    ("gone with no time left: expiry's business", active(-1), None, NoChange(None)),
    ("dead with no time left: expiry's business", active(-1), DIED, NoChange(None)),
]  # fmt: skip


@pytest.mark.parametrize(("reservation", "seen", "decision"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_is_seen_decides(reservation: Reservation, seen: ServerState | None, decision: Readiness) -> None:
    assert decide_readiness(reservation, seen, NOW, TIMING) == decision


@pytest.mark.parametrize("seen", [None, READY, STARTING, DIED, LOST])
@pytest.mark.parametrize("status", [s for s in Status if not s.holds_capacity])
def test_only_those_with_a_place_are_looked_at(status: Status, seen: ServerState | None) -> None:
    assert decide_readiness(active(status=status), seen, NOW, TIMING) == NoChange(None)


def test_a_short_deadline_is_told_in_seconds() -> None:
    timing = TimingSettings(preparing_deadline=timedelta(seconds=20))
    assert decide_readiness(preparing(step=None), None, NOW, timing) == FailReservation("not ready within 20 seconds")
