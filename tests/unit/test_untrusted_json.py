"""JSON that users can write: whatever it is, nothing but a ValueError comes of it."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.adapters.kubernetes.observation.home_contents import parse_contents
from gpudev.adapters.kubernetes.observation.pod_reports import parse_report
from gpudev.adapters.kubernetes.provisioning.addons import _parse_jupyter_status
from gpudev.adapters.local.sshd.jupyter import JupyterOptions, parse_jupyter_report
from gpudev.domain.errors import ClusterError
from gpudev.domain.reservations.command_exit import parse_command_exit
from gpudev.domain.sessions.addons import JupyterSpec, JupyterState
from gpudev.domain.untrusted_json import MAX_DEPTH, parse_untrusted_json
from support.hostile_json import HOSTILE


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_untrusted_json(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_what_is_not_deep_arrives_as_it_was_written(value: object) -> None:
    text = json.dumps(value)
    try:
        found = parse_untrusted_json(text)
    except ValueError:
        assert text.count("[") > MAX_DEPTH or "\\ud" in text
    else:
        assert found == value


@given(st.binary(max_size=200) | st.text('[]{}":\\, 1e', max_size=200).map(str.encode))
def test_nothing_else_is_ever_raised(text: bytes) -> None:
    try:
        parse_untrusted_json(text)
    except ValueError:
        return


def test_brackets_in_text_do_not_count() -> None:
    assert parse_untrusted_json(json.dumps(["[" * 1000, '\\"[['])) == ["[" * 1000, '\\"[[']


def test_many_shallow_values_are_read() -> None:
    many = [[["x", number]] for number in range(5000)]
    assert parse_untrusted_json(json.dumps(many), max_bytes=10**6) == many


@pytest.mark.parametrize("text", HOSTILE)
def test_no_report_of_a_dev_server_raises_what_its_reader_does_not_expect(text: bytes) -> None:
    assert parse_command_exit(text) is None
    assert JupyterOptions.parse(text.decode(errors="replace")) is None
    spec = JupyterSpec("token", "key", "/x/")
    assert parse_jupyter_report(text.decode(errors="replace"), spec).state is JupyterState.STARTING
    for parse in (parse_report, parse_contents, _parse_jupyter_status):
        with pytest.raises(ClusterError):
            parse(text)


def test_a_reader_that_is_deep_in_calls_itself_still_gets_a_value_error() -> None:
    def at_depth(frames: int) -> None:
        if frames:
            at_depth(frames - 1)
            return
        with pytest.raises(ValueError, match=r".*"):
            parse_untrusted_json(b"[" * 60_000)

    at_depth(sys.getrecursionlimit() // 2)
