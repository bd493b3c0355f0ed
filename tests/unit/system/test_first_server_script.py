"""The last step of `make up`, where there is nothing to show it with."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "first-server"


@pytest.fixture
def first_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = spec_from_loader("first_server", SourceFileLoader("first_server", str(_SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    script: Any = module_from_spec(spec)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    spec.loader.exec_module(script)
    return script


def _answering(gpu_types: list[dict[str, Any]]) -> Any:
    def ask(arguments: list[str], _step: str) -> dict[str, Any]:
        return {"list": {"jobs": []}, "avail": {"gpu_types": gpu_types}}[arguments[0]]

    return ask


def test_a_machine_whose_gpus_are_all_in_use_is_up_all_the_same(
    first_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first_server.ask = _answering([{"gpu_type": "h200", "max_per_node": 1, "available_gpus": 0}])
    assert first_server.main() == 0
    assert "Everything is in use" in capsys.readouterr().out


def test_a_machine_without_anything_to_reserve_is_not(first_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first_server.ask = _answering([])
    assert first_server.main() == 1
    assert "nothing to reserve" in capsys.readouterr().out
