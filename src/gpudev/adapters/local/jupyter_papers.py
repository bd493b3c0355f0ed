"""Jupyter as a dev server of this machine is told of it, and tells of it: values ↔ the text of files."""

import json
from dataclasses import asdict

from gpudev.adapters.local.sshd.jupyter import fingerprint
from gpudev.domain.sessions.addons import OUTDATED, JupyterSeen, JupyterState, JupyterWish

_LONGEST_REASON = 1000


def wish_to_text(wish: JupyterWish | None) -> str:
    return "" if wish is None else json.dumps(asdict(wish))


def seen_in(report: str | None, wish: JupyterWish) -> JupyterSeen:
    """What is said of another wish, or cannot be read, says nothing of this one. Users may have had a hand in it."""
    if report is None:
        return JupyterSeen(JupyterState.FAILED, OUTDATED)
    starting = JupyterSeen(JupyterState.STARTING)
    try:
        told = json.loads(report)
        if told["wish"] != fingerprint(wish_to_text(wish)):
            return starting
        state = JupyterState(told["state"])
        reason = None if told["reason"] is None else str(told["reason"])
    except (ValueError, TypeError, KeyError):
        return starting
    if state is not JupyterState.FAILED:
        return JupyterSeen(state)
    words = "".join(letter for letter in reason or "it does not say why" if letter.isprintable())
    return JupyterSeen(state, words[:_LONGEST_REASON])
