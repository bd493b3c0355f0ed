"""Starting at boot: the unit's text, and what is said where there is no systemd."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gpudev.embedded import systemd_unit
from support.system.machine import Machine

HAS_SYSTEMD = Path("/run/systemd/system").is_dir()


def unit(home: str = "/srv/gpu dev", nodes_file: Path | None = None, *, as_root: bool = True) -> str:
    return systemd_unit.unit_text(home=Path(home), nodes_file=nodes_file, port=None, as_root=as_root)


def test_the_unit_leaves_the_dev_servers_alone_when_it_stops() -> None:
    assert "KillMode=process" in unit().splitlines()


def test_the_unit_stays_in_the_foreground_and_is_started_again_only_when_it_failed() -> None:
    text = unit()
    assert '"-m" "gpudev.main" "up" "--foreground"' in text
    assert "Restart=on-failure" in text.splitlines()


def test_root_s_unit_starts_at_boot_and_a_user_s_with_the_user_s_services() -> None:
    assert "WantedBy=multi-user.target" in unit(as_root=True).splitlines()
    assert "WantedBy=default.target" in unit(as_root=False).splitlines()


def test_root_s_unit_waits_for_the_network_that_dev_servers_are_joined_to() -> None:
    """Before that there may be neither routes nor name servers, nor the address to listen on."""
    assert {"Wants=network-online.target", "After=network-online.target"} <= set(unit(as_root=True).splitlines())
    assert "network-online" not in unit(as_root=False)


def test_what_systemd_would_read_as_its_own_is_quoted() -> None:
    text = unit(home='/srv/50% "off"', nodes_file=Path("/etc/$nodes.toml"))
    assert 'Environment="GPU_DEV_HOME=/srv/50%% \\"off\\""' in text.splitlines()
    assert '"--nodes" "/etc/$$nodes.toml"' in text


def test_after_a_boot_it_has_the_settings_it_was_installed_with_and_nobody_s_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "GPU_DEV_API_HOST": "0.0.0.0",
        "GPU_DEV_SSH_HOST": "10.0.0.7",
        "GPU_DEV_MAX_HOURS": "12",
        "API_KEY_TTL_HOURS": "24",
        "GPU_DEV_API_KEY": "gpudev_secret",
        "POSTGRES_PASSWORD": "secret",
        "GPU_DEV_HOME": "/elsewhere",
    }.items():
        monkeypatch.setenv(name, value)
    lines = unit(home="/srv/gpu-dev").splitlines()
    assert 'Environment="GPU_DEV_API_HOST=0.0.0.0"' in lines
    assert 'Environment="GPU_DEV_SSH_HOST=10.0.0.7"' in lines
    assert 'Environment="GPU_DEV_MAX_HOURS=12"' in lines
    assert 'Environment="API_KEY_TTL_HOURS=24"' in lines
    assert 'Environment="GPU_DEV_HOME=/srv/gpu-dev"' in lines
    assert "secret" not in "\n".join(lines)
    assert "/elsewhere" not in "\n".join(lines)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_itself_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / systemd_unit.UNIT
    path.write_text(unit())
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if systemd_unit.UNIT in line]
    assert about_it == []


@pytest.mark.slow
@pytest.mark.skipif(HAS_SYSTEMD, reason="this machine runs systemd: a test must not change what it starts at boot")
def test_without_systemd_it_says_so_and_starts_nothing(machine: Machine) -> None:
    up = machine.run("up", "--at-boot")
    assert up.returncode == 1
    assert "does not run systemd" in up.stdout
    assert "up --foreground" in up.stdout
    assert machine.processes() == []
    down = machine.run("down", "--at-boot")
    assert down.returncode == 1
    assert "does not run systemd" in down.stdout
