"""When a dev server's interior is looked at again, and what its owner is told."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpudev.domain.ids import new_reservation_id
from gpudev.domain.sessions.addons import Addons, JupyterAddon, JupyterSpec, JupyterState, JupyterStatus
from gpudev.planning.sessions import applied_result, describe_jupyter_change, failed_result

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
WISH = JupyterSpec("t", "k", "/")
STARTING, READY = JupyterStatus(JupyterState.STARTING), JupyterStatus(JupyterState.READY)
FAILED = JupyterStatus(JupyterState.FAILED, "there is none")
PLAIN = Addons(new_reservation_id(), 3, 2, 0, None, (), None)


def with_jupyter(seen: JupyterStatus) -> Addons:
    return replace(PLAIN, jupyter=JupyterAddon(WISH, seen))


def test_what_is_true_is_looked_at_again_only_while_something_may_change_by_itself() -> None:
    assert applied_result(PLAIN, None, NOW).due_at is None
    assert applied_result(with_jupyter(STARTING), FAILED, NOW).due_at is None
    starting, ready = (applied_result(with_jupyter(STARTING), seen, NOW).due_at for seen in (STARTING, READY))
    assert starting is not None
    assert ready is not None
    assert NOW < starting < ready
    assert applied_result(PLAIN, READY, NOW).jupyter is None, "of one that is not wanted nothing is kept"


def test_what_did_not_work_is_tried_less_and_less_often_but_for_ever() -> None:
    pauses = []
    for attempts in range(40):
        noted = failed_result(replace(PLAIN, attempts=attempts), "it is away", NOW)
        assert (noted.error, noted.generation) == ("it is away", 3)
        assert noted.due_at is not None
        pauses.append(noted.due_at - NOW)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (timedelta(seconds=1), timedelta(minutes=1))


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (STARTING, READY, "Jupyter is ready"),
        (READY, READY, None),
        (STARTING, FAILED, "Jupyter does not run: there is none"),
        (FAILED, FAILED, None),
        (READY, STARTING, "Jupyter is starting again"),
        (STARTING, STARTING, None),
    ],
)
def test_owners_are_told_once_of_what_happened(before: JupyterStatus, now: JupyterStatus, told: str | None) -> None:
    assert describe_jupyter_change(with_jupyter(before), now) == told
