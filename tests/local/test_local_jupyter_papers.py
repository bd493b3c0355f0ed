"""What a dev server says of Jupyter, and what is made of it: a stranger's text."""

import json

import pytest

from gpudev.adapters.local.jupyter_papers import seen_in, wish_to_text
from gpudev.adapters.local.sshd.jupyter import Wish, fingerprint
from gpudev.domain.sessions.addons import JupyterSeen, JupyterState, JupyterWish

WISH = JupyterWish("token", "ssh-ed25519 AAAA", "/v1/jobs/x/jupyter/")
STARTING = JupyterSeen(JupyterState.STARTING)


def said(state: object, reason: object = None, wish: str | None = None) -> str:
    return json.dumps({"wish": wish or fingerprint(wish_to_text(WISH)), "state": state, "reason": reason})


def test_a_wish_arrives_as_it_was_written() -> None:
    assert Wish.parse(wish_to_text(WISH)) == Wish(WISH.token, WISH.public_key, WISH.base_url)
    assert Wish.parse(wish_to_text(None)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"token": "x"}', "1"])
def test_what_cannot_be_read_is_no_wish(text: str) -> None:
    assert Wish.parse(text) is None


def test_what_is_said_of_this_wish_counts() -> None:
    assert seen_in(said("ready"), WISH) == JupyterSeen(JupyterState.READY)
    assert seen_in(said("starting"), WISH) == STARTING
    failed = seen_in(said("failed", "it ended\x1b[31m with 1" + "x" * 5000), WISH)
    assert failed.state is JupyterState.FAILED
    assert failed.reason is not None
    assert failed.reason.startswith("it ended[31m with 1")
    assert len(failed.reason) == 1000


@pytest.mark.parametrize("report", ["", "{", "[]", "null", said("ready", wish="other"), said("odd"), said(["ready"])])
def test_anything_else_says_nothing(report: str) -> None:
    assert seen_in(report, WISH) == STARTING


def test_a_dev_server_that_knows_nothing_of_it_will_never_start_it() -> None:
    seen = seen_in(None, WISH)
    assert seen.state is JupyterState.FAILED
    assert "older version" in str(seen.reason)
