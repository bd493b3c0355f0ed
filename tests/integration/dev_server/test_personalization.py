"""What people bring to a dev server in a container: variables, dotfiles, a start-up script."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.polling import eventually
from support.sessions.dotfiles_server import URL, serve_dotfiles
from support.ssh.dev_server_container import CONTAINER, Builder, DevServer, _as_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine to clone with"),
]

SECRET = "planted 4711 $HOME `id`\nand a second line"


def settled(server: DevServer) -> dict[str, Any]:
    """As `kubectl exec` into the container would ask."""
    command = [*_as_server(server.mode), str(server.program), "settled", "--port", str(server.port), "--within", "30s"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def bring(builder: Builder, variables: dict[str, str], dotfiles: str = "", script: str = "") -> None:
    builder.write("own_variables", "".join(f"{name}={value}\0" for name, value in variables.items()))
    if dotfiles:
        builder.write("dotfiles", dotfiles)
    if script:
        builder.write("startup_script", script)


def test_all_of_it_is_done_as_the_user_with_the_variables_to_the_letter(builder: Builder, tmp_path: Path) -> None:
    script = "#!/bin/sh\nprintf '%s' \"$PIN\" > ~/pin\npwd > ~/where\nsleep 300 &\necho $! > ~/sleeper\n"
    with serve_dotfiles(tmp_path) as served:
        served.publish({"install.sh": "#!/bin/sh\nid -u > ~/installed-by\nprintf '%s' \"$PIN\"\n", "vimrc": "new"})
        # The system's own cannot be replaced, whoever wrote that file.
        bring(builder, {**served.environment, "PIN": SECRET, "GPU_DEV_TEST": "no"}, URL, script)
        server = builder.start()
        told = settled(server)
    assert told == {"words": "dotfiles: cloned; install.sh: done; start-up script: done", "final": True}
    for command in ("cat ~/pin", 'printf %s "$PIN"', "cat ~/.cache/gpu-dev/setup.log"):
        assert server.ssh(command).stdout.decode() == SECRET
    assert server.ssh("cat ~/.dotfiles/vimrc; echo $GPU_DEV_TEST").stdout == b"newyes\n"
    assert server.ssh("cat ~/installed-by").stdout == server.ssh("id -u").stdout
    assert server.ssh("cat ~/where").stdout == server.ssh("cd && pwd -P").stdout
    assert server.ssh("stat -c %a ~/.cache/gpu-dev/setup.log").stdout == b"600\n"
    assert server.ssh("kill $(cat ~/sleeper)").returncode == 0, "what it left in the background goes on"
    assert server.ssh("ls $XDG_RUNTIME_DIR /tmp | grep startup").stdout == b""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "start-up script: ended with 3 (~/.cache/gpu-dev/setup.log has more)"),
        ("kill -9 $$", "start-up script: was killed by signal 9 (~/.cache/gpu-dev/setup.log has more)"),
        ("#!/nonexistent/interpreter\n", "start-up script: could not be started (no such file or directory)"),
    ],
)
def test_what_fails_is_told_and_people_get_in(build: Any, tmp_path: Path, script: str, told: str) -> None:
    builder = build(CONTAINER)
    with serve_dotfiles(tmp_path) as served:  # which has no such repository
        bring(builder, served.environment, URL, script)
        server = builder.start()
        words = settled(server)["words"]
    assert words.startswith("dotfiles: git clone ended with 128; ")
    assert told.partition(" (~")[0] in words
    assert server.ssh("echo here; ls -A ~ | grep dotfiles").stdout == b"here\n"


def test_a_secret_is_not_among_arguments_and_logs(build: Any) -> None:
    builder = build(CONTAINER)
    bring(builder, {"PIN": SECRET}, script=f"# {SECRET.splitlines()[0]}\nsleep 60\n")
    server = builder.start()
    eventually(lambda: server.ssh("pgrep -x sleep").returncode == 0)
    arguments = server.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert b"sleep 60" in arguments
    assert b"4711" not in arguments
    assert b"4711" not in server.log.read_bytes()
    assert server.ssh("cat /gpudev/config/own_variables /gpudev/config/startup_script").stdout == b""


def test_without_any_there_is_nothing_to_tell(build: Any) -> None:
    assert settled(build(CONTAINER).start()) == {"words": "", "final": True}


def test_people_themselves_are_not_asked_and_cannot_ask(build: Any) -> None:
    server = build(CONTAINER).start()
    refused = server.ssh(f"/gpudev/bin/gpudev-devserver settled --port {server.port}")
    assert refused.returncode != 0
    assert refused.stdout == b""
