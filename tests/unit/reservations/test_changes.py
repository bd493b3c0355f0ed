"""Only `changes` constructs a Change, and every one of them expects the row as it was read."""

import ast
import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

import gpudev
from gpudev.domain.cluster import NodeShare
from gpudev.domain.errors import IllegalTransition
from gpudev.domain.queue import Estimate
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, SshEndpoint
from support.factories import NOW, make_reservation

MARGIN = timedelta(minutes=5)
SHARES = (NodeShare(0, "a", 2, (0, 1)),)
ENDPOINT = SshEndpoint("10.0.0.1", 22, "dev", "ssh-ed25519 AAAA")
ESTIMATE = Estimate(3, NOW + timedelta(hours=1), None, "all is full")


WAITING, PREPARING, ACTIVE = (make_reservation(status) for status in (Status.QUEUED, Status.PREPARING, Status.ACTIVE))
PENDING, OVER = make_reservation(Status.PENDING), make_reservation(Status.EXPIRED)
ALL = [
    (PENDING, changes.queued(PENDING, ESTIMATE, NOW, MARGIN)),
    (WAITING, changes.delayed(WAITING, ESTIMATE, NOW, MARGIN, promised=NOW, why="a node was lost")),
    (WAITING, changes.prioritised(WAITING, 5, "bob")),
    (WAITING, changes.resent(WAITING, NOW, "10 minutes")),
    (PREPARING, changes.requeued(PREPARING, "node a is gone")),
    (WAITING, changes.withdrawn(WAITING)),
    (PENDING, changes.preparing(PENDING, SHARES, NOW)),
    (PREPARING, changes.step_recorded(PREPARING, "pulling the image")),
    (PREPARING, changes.disk_step_recorded(PREPARING, "restoring", NOW)),
    (PREPARING, changes.disk_ready(PREPARING, "ready", NOW)),
    (PREPARING, changes.launch_postponed(PREPARING, NOW, None)),
    (PREPARING, changes.launch_retried(PREPARING, "no", NOW, 3)),
    (PREPARING, changes.activated(PREPARING, ENDPOINT, NOW)),
    (ACTIVE, changes.reconnected(ACTIVE, ENDPOINT)),
    (ACTIVE, changes.restarted(ACTIVE)),
    (ACTIVE, changes.node_lost(ACTIVE, "node a does not answer")),
    (ACTIVE, changes.setup_reported(ACTIVE, "dotfiles: done")),
    (ACTIVE, changes.warned(ACTIVE, 5, "4 minutes")),
    (ACTIVE, changes.extended(ACTIVE, 2, NOW)),
    (ACTIVE, changes.event_recorded(ACTIVE, "users", "ada added bob")),
    (ACTIVE, changes.expired(ACTIVE)),
    (ACTIVE, changes.cancelled(ACTIVE, "cancelled by ada", NOW)),
    (ACTIVE, changes.failed(ACTIVE, "no")),
    (PREPARING, changes.launch_failed(PREPARING, "no")),
    (OVER, changes.released(OVER)),
]


@pytest.mark.parametrize(("row", "change"), ALL)
def test_a_change_expects_the_row_as_it_was_read(row: Reservation, change: Change) -> None:
    assert (change.reservation_id, change.status, change.version) == (row.reservation_id, row.status, row.version)


def test_what_waits_and_holds_nothing_is_released_when_it_is_cancelled() -> None:
    assert changes.cancelled(WAITING, "no", NOW).release
    assert not changes.cancelled(dataclasses.replace(WAITING, shares=SHARES), "no", NOW).release
    assert not changes.cancelled(PREPARING, "no", NOW).release


def test_an_illegal_change_cannot_be_constructed() -> None:
    with pytest.raises(IllegalTransition):
        changes.activated(WAITING, ENDPOINT, NOW)


def test_changes_are_constructed_in_one_module() -> None:
    source = Path(gpudev.__file__).parent
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")) == "Change"
    }
    assert found == {"domain/reservations/changes.py"}
