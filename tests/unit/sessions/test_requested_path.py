"""Which path a request asks for, as far as a process has to know to pass its connection on."""

import pytest

from gpudev.api.http.handover_protocol import find_requested_path
from gpudev.proxy.jupyter.headers import find_jupyter_path

_ID = "00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b"", None),
        (b"\r\n\r\n", None),
        (b"GET /v1/jobs HTTP/1.1", None),
        (b"GET /v1/jobs HTTP/1.1\r", None),
        (b"GET /v1/jobs HTTP/1.1\r\n", "/v1/jobs"),
        (b"\r\n\r\nGET /v1/jobs HTTP/1.1\nHost: x", "/v1/jobs"),
        (b"GET /v1/jobs?a=/b HTTP/1.1\r\n", "/v1/jobs"),
        (b"GET /v1/%6aobs HTTP/1.1\r\n", "/v1/jobs"),
        (b"GET http://gpu.example/v1/jobs HTTP/1.1\r\n", "/v1/jobs"),
        (b"OPTIONS * HTTP/1.1\r\n", "*"),
        (b"CONNECT gpu.example:443 HTTP/1.1\r\n", ""),
        (b"GET\r\n", ""),
        (b"\x16\x03\x01\xff\n", ""),
        (b"GET /\xff HTTP/1.1\r\n", ""),
    ],
)
def test_the_path_is_that_of_the_first_line(data: bytes, path: str | None) -> None:
    assert find_requested_path(data) == path


@pytest.mark.parametrize(
    ("target", "is_jupyter"),
    [
        (f"/v1/jobs/{_ID}/jupyter/lab", True),
        (f"/v1/jobs/{_ID}/jupyter/enter?ticket=x", True),
        (f"/v1/jobs/{_ID}/jupyte%72/lab", True),
        (f"http://gpu.example/v1/jobs/{_ID}/jupyter/", True),
        (f"/v1/jobs/{_ID}/jupyter/enable", False),
        (f"/v1/jobs/{_ID}/jupyter", False),
        (f"/v1/jobs/{_ID}/ssh", False),
        (f"/v1/jobs?next=/v1/jobs/{_ID}/jupyter/lab", False),
    ],
)
def test_however_it_is_written_a_path_of_jupyter_is_recognized(target: str, is_jupyter: bool) -> None:
    path = find_requested_path(f"GET {target} HTTP/1.1\r\n".encode())
    assert path is not None
    assert (find_jupyter_path(path) is not None) is is_jupyter
