"""What a dev server says of Jupyter, and what is made of it: a stranger's text."""

import json

import pytest

from gpudev.adapters.local.sshd.jupyter import JupyterOptions, fingerprint, jupyter_spec_to_text, parse_jupyter_report
from gpudev.domain.sessions.addons import JupyterSpec, JupyterState, JupyterStatus

WISH = JupyterSpec("token", "ssh-ed25519 AAAA", "/v1/jobs/x/jupyter/")
STARTING = JupyterStatus(JupyterState.STARTING)


def said(state: object, reason: object = None, wish: str | None = None) -> str:
    return json.dumps({"wish": wish or fingerprint(jupyter_spec_to_text(WISH)), "state": state, "reason": reason})


def test_a_wish_arrives_as_it_was_written() -> None:
    assert JupyterOptions.parse(jupyter_spec_to_text(WISH)) == JupyterOptions(
        WISH.token, WISH.public_key, WISH.base_url
    )
    assert JupyterOptions.parse(jupyter_spec_to_text(None)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"token": "x"}', "1"])
def test_what_cannot_be_read_is_no_wish(text: str) -> None:
    assert JupyterOptions.parse(text) is None


def test_what_is_said_of_this_wish_counts() -> None:
    assert parse_jupyter_report(said("ready"), WISH) == JupyterStatus(JupyterState.READY)
    assert parse_jupyter_report(said("starting"), WISH) == STARTING
    failed = parse_jupyter_report(said("failed", "it ended\x1b[31m with 1" + "x" * 5000), WISH)
    assert failed.state is JupyterState.FAILED
    assert failed.reason is not None
    assert failed.reason.startswith("it ended[31m with 1")
    assert len(failed.reason) == 1000


@pytest.mark.parametrize("report", ["", "{", "[]", "null", said("ready", wish="other"), said("odd"), said(["ready"])])
def test_anything_else_says_nothing(report: str) -> None:
    assert parse_jupyter_report(report, WISH) == STARTING


def test_a_dev_server_that_knows_nothing_of_it_will_never_start_it() -> None:
    seen = parse_jupyter_report(None, WISH)
    assert seen.state is JupyterState.FAILED
    assert "older version" in str(seen.reason)
