"""The environment of commands in a container."""

import pytest

from support.ssh.dev_server_container import CONTAINER, DevServer

pytestmark = pytest.mark.slow


def test_the_environment_is_the_containers_and_the_reservations(server: DevServer) -> None:
    environment = dict(line.split("=", 1) for line in server.ssh("env").stdout.decode().splitlines())
    assert environment["GPU_DEV_NAME"] == "a $(b) 'c' = d"
    assert environment["LANG"] == "C.UTF-8"
    expected = {"LD_LIBRARY_PATH": "/opt/image/lib", "NVIDIA_VISIBLE_DEVICES": "GPU-1", "CUDA_VERSION": "12.9"}
    assert expected.items() <= environment.items()
    assert environment["HF_HOME"] == "/workspace/hf"
    if server.mode == CONTAINER:
        assert environment["PATH"] == "/opt/image/bin:/usr/local/bin:/usr/bin:/bin"
        assert environment["XDG_RUNTIME_DIR"] == "/run/user/1000"


def test_a_change_of_the_environment_file_holds_from_the_next_session(container: DevServer) -> None:
    path = container.config / "environment"
    path.unlink()
    path.write_text('BROKEN LINE\n1BAD=x\nA="quoted" # no comment\nB=\n#C=c\nPATH=/usr/bin:/bin\n\0=\n')
    told = container.ssh('echo "$A|$B|${C-none}|$PATH|${GPU_DEV_TEST-gone}"').stdout
    assert told == b'"quoted" # no comment||none|/usr/bin:/bin|gone\n'
