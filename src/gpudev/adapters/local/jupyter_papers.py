"""Jupyter as a dev server of this machine is told of it, and tells of it: values ↔ the text of files."""

import json
from dataclasses import asdict

from gpudev.adapters.local.sshd.jupyter import fingerprint
from gpudev.domain.sessions.addons import OUTDATED_SERVER_ERROR, JupyterSpec, JupyterState, JupyterStatus

_LONGEST_REASON = 1000


def jupyter_spec_to_text(spec: JupyterSpec | None) -> str:
    return "" if spec is None else json.dumps(asdict(spec))


def parse_jupyter_report(report: str | None, spec: JupyterSpec) -> JupyterStatus:
    """What is said of another wish, or cannot be read, says nothing of this one. Users may have had a hand in it."""
    if report is None:
        return JupyterStatus(JupyterState.FAILED, OUTDATED_SERVER_ERROR)
    starting = JupyterStatus(JupyterState.STARTING)
    try:
        told = json.loads(report)
        if told["wish"] != fingerprint(jupyter_spec_to_text(spec)):
            return starting
        state = JupyterState(told["state"])
        reason = None if told["reason"] is None else str(told["reason"])
    except (ValueError, TypeError, KeyError):
        return starting
    if state is not JupyterState.FAILED:
        return JupyterStatus(state)
    words = "".join(letter for letter in reason or "it does not say why" if letter.isprintable())
    return JupyterStatus(state, words[:_LONGEST_REASON])
