"""What is passed on to Jupyter and back, and who may ask: rules, without anything that runs."""

import pytest

from gpudev.domain.errors import Forbidden
from gpudev.proxy.jupyter import headers as door

ID = "3f2a9c1e-0000-4000-8000-000000000000"
BASE = f"/v1/jobs/{ID}/jupyter/"
SECRET = "s" * 43


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        (BASE, ""),
        (f"{BASE}lab", "lab"),
        (f"{BASE}lab/tree/a b.ipynb", "lab/tree/a b.ipynb"),
        (f"{BASE}enter", "enter"),
        (f"/v1/jobs/{ID.replace('-', '').upper()}/jupyter/lab", "lab"),
        (f"{BASE}enable/x", "enable/x"),
        (f"{BASE}line\nbreak", "line\nbreak"),
    ],
)
def test_what_is_below_jupyters_path_is_jupyters(path: str, rest: str) -> None:
    assert door.find_jupyter_path(path) == door.JupyterPath(ID, rest)


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/jobs/{ID}/jupyter",
        f"{BASE}enable",
        f"{BASE}disable",
        f"{BASE}link",
        f"/v1/jobs/{ID}/ssh",
        "/v1/jobs/3f2a9c1e/jupyter/lab",
        f"/v1/jobs/{'-' * 36}/jupyter/lab",
        f"/x{BASE}lab",
        f"/v1/jobs/../{ID}/jupyter/lab",
    ],
)
def test_everything_else_is_not(path: str) -> None:
    assert door.find_jupyter_path(path) is None


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        ([f"gpudev_jupyter={SECRET}"], SECRET),
        ([f"a=1; gpudev_jupyter={SECRET}; b=2"], SECRET),
        (["a=1", f"gpudev_jupyter={SECRET}"], SECRET),
        ([], None),
        (["gpudev_jupyter=short"], None),
        ([f"gpudev_jupyter={'x' * 300}"], None),
        ([f"xgpudev_jupyter={SECRET}"], None),
        ([f"gpudev_jupyter={SECRET}; gpudev_jupyter={SECRET[:-1]}t"], None),
    ],
)
def test_a_browsers_secret_is_one_or_none(cookies: list[str], found: str | None) -> None:
    """Of two somebody else has planted one: then none counts."""
    assert door.find_session_secret([(b"cookie", cookie.encode()) for cookie in cookies]) == found


def headers(**named: str) -> door.Headers:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


@pytest.mark.parametrize(
    ("method", "websocket", "given"),
    [
        ("GET", False, {"host": "api:7480"}),
        ("POST", False, {"host": "api:7480"}),
        ("POST", False, {"host": "api:7480", "origin": "http://api:7480", "sec_fetch_site": "same-origin"}),
        ("GET", True, {"host": "api:7480", "origin": "http://API:7480"}),
        ("GET", True, {"host": "10.0.0.9:8080", "origin": "https://gpu.example"}),
        ("GET", False, {"host": "api", "sec_fetch_site": "none"}),
    ],
)
def test_our_own_pages_and_programs_may_ask(method: str, websocket: bool, given: dict[str, str]) -> None:
    door.check_origin(method, headers(**given), {"gpu.example"}, is_websocket=websocket)


@pytest.mark.parametrize(
    ("method", "websocket", "given"),
    [
        ("GET", True, {"host": "api"}),
        ("GET", True, {"host": "api", "origin": "https://evil.example"}),
        ("GET", True, {"host": "api", "origin": "null"}),
        ("GET", True, {"host": "api", "origin": "http://api.evil.example"}),
        ("GET", True, {"host": "api", "origin": "http://api:1"}),
        ("GET", True, {"host": "", "origin": ""}),
        ("POST", False, {"host": "api", "origin": "http://["}),
        ("DELETE", False, {"host": "api", "origin": "https://evil.example"}),
        ("GET", False, {"host": "api", "sec_fetch_site": "cross-site"}),
        ("GET", False, {"host": "api", "sec_fetch_site": "same-site"}),
    ],
)
def test_pages_from_elsewhere_may_not(method: str, websocket: bool, given: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        door.check_origin(method, headers(**given), set(), is_websocket=websocket)


def test_several_origins_are_none_of_ours() -> None:
    given = [(b"host", b"api"), (b"origin", b"http://api"), (b"origin", b"http://api")]
    with pytest.raises(Forbidden):
        door.check_origin("POST", given, set(), is_websocket=False)


def test_nothing_that_opens_a_way_through_us_goes_in() -> None:
    given = headers(
        host="api",
        cookie=f"gpudev_jupyter={SECRET}; _xsrf=1",
        authorization="Bearer gpudev_key",
        connection="keep-alive, x-private",
        x_private="1",
        x_forwarded_for="9.9.9.9",
        accept="*/*",
    )
    assert door.request_headers(given, "t") == [
        (b"host", b"api"),
        (b"accept", b"*/*"),
        (b"cookie", b"_xsrf=1"),
        (b"authorization", b"token t"),
    ]


def test_nothing_that_reaches_beyond_its_path_comes_out() -> None:
    kept = [
        (b"Content-Type", b"text/html"),
        (b"Content-Security-Policy", b"frame-ancestors 'self'"),
        (b"ETag", b'"1"'),
        (b"Location", b"lab"),
        (b"Sec-WebSocket-Protocol", b"v1.kernel.websocket.jupyter.org"),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Set-Cookie", f"_xsrf=1; Path={BASE}".encode()),
        (b"Set-Cookie", f"a=1; HttpOnly; path={BASE.rstrip('/')}; Domain=".encode()),
        (b"Set-Cookie", f"b={{x}}; Path={BASE}lab".encode()),
        (b"Set-Cookie", b"c=gone; Max-Age=0"),
    ]
    dropped = [
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"Set-Cookie", b"a=1; Path=/v1/jobs"),
        (b"Set-Cookie", f"a=1; Path={BASE.rstrip('/')}x".encode()),
        (b"Set-Cookie", f"a=1; Path={BASE}; pAtH = /".encode()),
        (b"Set-Cookie", b"a b=1; Domain=example"),
        (b"Set-Cookie", b"a=1; Domain=example; Domain="),
        (b"Set-Cookie", b"=gpudev_jupyter=planted"),
        (b"Set-Cookie", b"gpudev_jupyter"),
        (b"Set-Cookie", b"gpudev_jupyter=planted; Path=/"),
        (b"Set-Cookie", b" gpudev_jupyter =planted"),
        (b"Set-Cookie", b"a=1; Domain=example"),
        (b"Service-Worker-Allowed", b"/"),
        (b"Clear-Site-Data", b'"*"'),
        (b"Strict-Transport-Security", b"max-age=0"),
        (b"X-Accel-Redirect", b"/internal/"),
        (b"x-accel-buffering", b"yes"),
        (b"X-Sendfile", b"/etc/passwd"),
        (b"NEL", b'{"report_to": "x", "max_age": 9}'),
        (b"Report-To", b'{"group": "x"}'),
        (b"Reporting-Endpoints", b'x="https://evil.example"'),
        (b"Accept-CH", b"Sec-CH-UA-Model"),
        (b"Critical-CH", b"Sec-CH-UA-Model"),
        (b"Origin-Trial", b"x"),
        (b"Speculation-Rules", b'"/rules.json"'),
        (b"Access-Control-Allow-Origin", b"*"),
        (b"Access-Control-Allow-Credentials", b"true"),
        (b"Link", b"</x>; rel=preload"),
        (b"Refresh", b"0; url=https://evil.example"),
        (b"X-Request-ID", b"planted"),
        (b"Server", b"planted"),
        (b"Date", b"planted"),
        (b"X-Whatever-Comes-Next", b"1"),
        (b"Connection", b"close, X-Odd"),
        (b"X-Odd", b"1"),
        (b"Transfer-Encoding", b"chunked"),
    ]
    assert door.response_headers([*kept, *dropped], BASE) == kept


@pytest.mark.parametrize(
    ("given", "is_secure"),
    [
        ({"host": "127.0.0.1:7480"}, False),
        ({"host": "localhost"}, False),
        ({"host": "[::1]:7480"}, False),
        ({"host": "127.0.0.1:7480", "x_forwarded_proto": "http"}, False),
        ({"host": "127.0.0.1:7480", "x_forwarded_proto": "https"}, True),
        ({"host": "gpu.example"}, True),
        ({"host": ""}, True),
        ({}, True),
    ],
)
def test_the_cookie_is_for_one_jupyter_and_for_tls_but_on_this_machine(given: dict[str, str], is_secure: bool) -> None:
    made = door.session_cookie(SECRET, door.JupyterPath(ID, "enter"), headers(**given), 60)
    assert made.startswith(f"gpudev_jupyter={SECRET}; Path={BASE}; Max-Age=60; HttpOnly; SameSite=Strict")
    assert made.endswith("; Secure") == is_secure
