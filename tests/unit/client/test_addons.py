"""Jupyter from a program: it is waited for, and what keeps it from starting is told."""

import json
from typing import Any

import pytest

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.errors import NotInTime, Rejected
from gpudev.sdk.http.routines import SyncDriver
from gpudev.sdk.http.transport import HttpResponse
from gpudev.sdk.resources.addons import Jupyter, JupyterMethods
from support.client.sdk_driver import drive


def view(state: str, **more: Any) -> HttpResponse:
    said = {"reservation_id": "3f2a", "state": state, "reason": None, **more}
    return HttpResponse(200, json.dumps(said).encode(), "application/json")


@pytest.fixture
def jupyter() -> Jupyter:
    session = ClientSession("http://127.0.0.1:9", {})
    return Jupyter(session, session.anonymous_client(), SyncDriver(session.new_transport()))


def test_it_is_waited_for_until_it_answers(jupyter: Jupyter) -> None:
    routine = JupyterMethods.enable.routine(jupyter, "3f2a")
    ready, effects = drive(routine, [view("starting"), None, view("starting"), None, view("ready")])
    assert ready.state == "ready"
    assert len(effects) == 5


def test_nobody_waits_for_it_who_does_not_want_to(jupyter: Jupyter) -> None:
    starting, _ = drive(JupyterMethods.enable.routine(jupyter, "3f2a", wait=False), [view("starting")])
    assert starting.state == "starting"


def test_what_keeps_it_from_starting_is_told(jupyter: Jupyter) -> None:
    with pytest.raises(Rejected, match="pip install jupyterlab"):
        drive(JupyterMethods.enable.routine(jupyter, "3f2a"), [view("failed", reason="pip install jupyterlab")])
    with pytest.raises(NotInTime, match="no way there"):
        drive(JupyterMethods.enable.routine(jupyter, "3f2a", timeout=-1), [view("starting", trouble="no way there")])


def test_its_link_says_where_the_api_is(jupyter: Jupyter) -> None:
    said = {"url": "/v1/jobs/3f2a/jupyter/?x", "expires_at": "2026-03-02T09:00:00Z"}
    answer = HttpResponse(200, json.dumps(said).encode(), "application/json")
    link, _ = drive(JupyterMethods.link.routine(jupyter, "3f2a"), [answer])
    assert link.url == "http://127.0.0.1:9/v1/jobs/3f2a/jupyter/?x"
