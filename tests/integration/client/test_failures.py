"""Whatever goes wrong: one sentence on stderr, an exit code that means something, never a traceback."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.client.cli_process import Cli, Completed
from support.client.fake_api import FakeApi, Trouble

pytestmark = pytest.mark.slow


def sentence(done: Completed, code: int) -> str:
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def problem(status: int, code: str, detail: str = "it cannot be") -> Trouble:
    body = {"type": "t", "title": "T", "status": status, "detail": detail, "code": code}
    return Trouble(answer=(status, "application/problem+json", json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "malformed", 5),
        (401, "unauthenticated", 3),
        (403, "forbidden", 3),
        (404, "not_found", 4),
        (409, "conflict", 5),
        (413, "too_large", 5),
        (422, "invalid", 5),
        (429, "limit_reached", 5),
        (500, "internal", 7),
        (502, "cluster_error", 7),
        (503, "unavailable", 7),
    ],
)
def test_every_answer_of_the_api_has_its_exit_code(
    cli: Cli, api: FakeApi, status: int, code: str, exit_code: int
) -> None:
    api.fail_next("/v1/jobs", *[problem(status, code)] * 4)
    assert "it cannot be" in sentence(cli.run("list"), exit_code)
    api.troubles.clear()
    api.fail_next("/v1/jobs", *[problem(status, code)] * 4)
    told = json.loads(cli.run("list", "--json").stderr)
    assert told["code"] == code
    assert told["status"] == status
    assert told["exit_code"] == exit_code


def test_a_passing_trouble_of_the_api_is_waited_out(cli: Cli, api: FakeApi) -> None:
    api.fail_next("/v1/jobs", problem(503, "unavailable"), Trouble(cut_before=True), Trouble(cut_after=True))
    assert cli.run("list").returncode == 0


def test_a_submit_is_repeated_only_under_the_same_key(cli: Cli, api: FakeApi) -> None:
    api.fail_next("/submit", problem(503, "unavailable"))
    assert cli.run("reserve", "--no-wait").returncode == 0
    assert len({asked.headers["Idempotency-Key"] for asked in api.requests("POST", "/submit")}) == 1


def test_nobody_listening_is_unreachable_and_names_the_next_step(cli: Cli, api: FakeApi) -> None:
    api.close()
    told = sentence(cli.run("list"), 7)
    assert "connection refused" in told
    assert "gpu-dev up" in told


def test_a_name_that_does_not_resolve_is_unreachable(cli: Cli) -> None:
    told = sentence(cli.run("list", "--api-url", "http://nowhere.invalid"), 7)
    assert "nowhere.invalid" in told
    assert "gpu-dev config show" in told


@pytest.mark.parametrize(
    "answer",
    [
        (200, "text/html", b"<html>hello</html>"),
        (200, "application/json", b"{"),
        (200, "application/json", b"[]"),
        (200, "application/json", b'{"jobs": [{"status": 1}]}'),
        (200, "application/json", b"\xff\xfe"),
        (404, "text/html", b"nothing here"),
        (418, "application/json", b'{"detail": 5}'),
    ],
    ids=str,
)
def test_a_stranger_is_told_apart_from_the_api(cli: Cli, api: FakeApi, answer: tuple[int, str, bytes]) -> None:
    api.fail_next("/v1/jobs", Trouble(answer=answer))
    assert "does not respond like a gpu-dev API" in sentence(cli.run("list"), 7)


def test_a_redirect_is_named_and_not_followed(cli: Cli, api: FakeApi) -> None:
    away = Trouble(answer=(301, "text/html", b""), headers=(("Location", "https://elsewhere.example.com/v1/jobs"),))
    api.fail_next("/v1/jobs", away)
    assert "https://elsewhere.example.com" in sentence(cli.run("list"), 7)


def test_what_the_api_says_cannot_drive_the_terminal(cli: Cli, api: FakeApi) -> None:
    api.fail_next("/v1/jobs", problem(422, "invalid", "evil \x1b[2J\x07 words"))
    done = cli.run("list")
    assert "\x1b" not in done.stderr
    assert "evil" in done.stderr


class _OneAnswer(BaseHTTPRequestHandler):
    """Writes down whom it was asked for, and answers with an empty list, or cuts it short."""

    server: "_Witness"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers.items())))
        body = b'{"jobs": [], "next_cursor": null}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) + self.server.missing))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self) -> None:
        self.server.seen.append((self.path, dict(self.headers.items())))
        self.send_error(403)


class _Witness(ThreadingHTTPServer):
    daemon_threads = True
    missing = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _OneAnswer)
        self.seen: list[tuple[str, dict[str, str]]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@pytest.fixture
def witness() -> Iterator[_Witness]:
    server = _Witness()
    yield server
    server.shutdown()
    server.server_close()


def test_an_answer_cut_short_is_not_believed(cli: Cli, witness: _Witness) -> None:
    witness.missing = 100
    sentence(cli.run("list", "--api-url", f"http://127.0.0.1:{witness.port}"), 7)
    assert len(witness.seen) == 4, "it was asked again"


def test_proxies_are_ignored_for_this_machine(cli: Cli, witness: _Witness) -> None:
    proxy = f"http://127.0.0.1:{witness.port}"
    assert cli.run("list", env={"http_proxy": proxy, "HTTP_PROXY": proxy, "https_proxy": proxy}).returncode == 0
    assert witness.seen == []


def test_proxies_are_used_for_everybody_else(cli: Cli, witness: _Witness) -> None:
    proxy = f"http://ada:pass%20word@127.0.0.1:{witness.port}"
    done = cli.run("list", "--api-url", "http://gpu.example.com/prefix", env={"http_proxy": proxy})
    assert done.returncode == 0, done.stderr
    [(target, headers)] = witness.seen
    assert target.startswith("http://gpu.example.com/prefix/v1/jobs?")
    assert headers["Host"] == "gpu.example.com"
    assert headers["Proxy-Authorization"] == "Basic YWRhOnBhc3Mgd29yZA=="


def test_a_secure_api_is_reached_through_a_tunnel(cli: Cli, witness: _Witness) -> None:
    done = cli.run("list", "--api-url", "https://gpu.example.com", env={"https_proxy": f"127.0.0.1:{witness.port}"})
    assert "through the proxy" in sentence(done, 7)
    assert witness.seen[0][0] == "gpu.example.com:443"


def test_no_proxy_is_honoured(cli: Cli, witness: _Witness) -> None:
    env: dict[str, str | None] = {"http_proxy": f"http://127.0.0.1:{witness.port}", "no_proxy": ".invalid"}
    sentence(cli.run("list", "--api-url", "http://gpu.invalid", env=env), 7)
    assert witness.seen == []


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Self-signed, for localhost; key and certificate in one file."""
    path = tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    try:
        done = subprocess.run([*command, *names, "-keyout", "-", "-out", "-"], capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("openssl cannot make a certificate here")
    path.write_bytes(done.stdout)
    return path


def test_certificates_are_checked_against_what_the_system_trusts(
    cli: Cli, witness: _Witness, certificate: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    witness.socket = context.wrap_socket(witness.socket, server_side=True)
    url = f"https://localhost:{witness.port}"
    assert "is not trusted" in sentence(cli.run("list", "--api-url", url), 7)
    assert witness.seen == [], "no key was sent"
    trusted = cli.run("list", "--api-url", url, env={"SSL_CERT_FILE": str(certificate)})
    assert trusted.returncode == 0, trusted.stderr


def test_an_api_that_accepts_and_says_nothing_is_left_at_ctrl_c(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = cli.start("list", "--api-url", f"http://127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=20)
        connection.close()
    assert process.returncode == 130
    assert "Traceback" not in complaint


def test_ctrl_c_while_submitting_says_that_it_may_have_happened(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = cli.start("reserve", "--api-url", f"http://127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=20)
        connection.close()
    assert process.returncode == 130
    assert "gpu-dev list" in complaint


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["--nonsense"],
        ["list", "--nonsense"],
        ["list", "extra"],
        ["list", "--status", "odd"],
        ["list", "--limit", "0"],
        ["status", "abcd", "efab"],
        ["completion"],
        ["completion", "csh"],
        ["config"],
        ["config", "nonsense"],
    ],
    ids=str,
)
def test_a_wrong_command_line_is_a_usage_error(cli: Cli, api: FakeApi, arguments: list[str]) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "gpu-dev" in done.stderr
    assert "Traceback" not in done.stderr
    assert not api.asked


def test_a_command_that_is_nearly_right_is_guessed(cli: Cli) -> None:
    assert "did you mean 'reserve'?" in sentence(cli.run("reserv"), 2)


def test_a_usage_error_in_json_is_json(cli: Cli) -> None:
    told = json.loads(cli.run("list", "--json", "--nonsense").stderr)
    assert told["code"] == "usage"
    assert told["exit_code"] == 2


def test_debug_shows_where_an_error_came_from(cli: Cli) -> None:
    done = cli.run("status", "deadbeef", env={"GPU_DEV_DEBUG": "1"})
    assert done.returncode == 4
    assert "Traceback" in done.stderr


def test_a_fault_of_our_own_is_no_traceback_either(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import json\njson.loads = lambda *_a, **_k: 1 / 0\n")
    done = cli.run("list", env={"PYTHONPATH": str(tmp_path)})
    told = sentence(done, 1)
    assert "ZeroDivisionError" in told
    assert "GPU_DEV_DEBUG=1" in told


def test_a_reader_that_goes_away_is_no_error(cli: Cli, api: FakeApi) -> None:
    for _ in range(3000):
        api.add(status="active", name="x" * 60)
    command = f'"{sys.executable}" -m gpudev.cli list --limit 3000 | head -1'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=cli.environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("ID")
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["--version"], ["list", "--json"]], ids=str)
def test_closed_streams_do_no_harm(cli: Cli, arguments: list[str]) -> None:
    command = " ".join([f'"{sys.executable}" -m gpudev.cli', *arguments, ">&- 2>&- <&-"])
    done = subprocess.run(["bash", "-c", command], env=cli.environment(), capture_output=True, check=False)
    assert done.returncode == 0


def test_what_is_opened_has_the_number_of_no_stream_that_is_closed() -> None:
    """A connection in the place of the standard input would be read as what somebody typed."""
    script = "import socket; from gpudev.cli import main; main._open_missing_streams(); print(socket.socket().fileno())"
    command = f"'{sys.executable}' -c '{script}' <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 2


def test_a_full_disk_is_no_success(cli: Cli) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    for arguments in ("list", "--help"):
        command = f'"{sys.executable}" -m gpudev.cli {arguments} > /dev/full'
        done = subprocess.run(
            ["bash", "-c", command], env=cli.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 8
        assert "Traceback" not in done.stderr
        assert "No space left" in done.stderr


@pytest.mark.parametrize("name", ["C", "POSIX"])
def test_any_locale_will_do(cli: Cli, api: FakeApi, name: str) -> None:
    api.add(status="active", name="日本 ü")
    env: dict[str, str | None] = {"LC_ALL": name, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = cli.run("list", env=env)
    assert done.returncode == 0, done.stderr
    assert api.jobs.popitem()[0][:8] in done.stdout


def test_an_output_that_cannot_show_a_sign_shows_another(cli: Cli, api: FakeApi) -> None:
    api.add(status="active", name="日本")
    done = cli.run("list", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "??" in done.stdout
    answer = cli.run("list", "--json", env={"PYTHONIOENCODING": "ascii"})
    assert json.loads(answer.stdout)["jobs"][0]["name"] == "日本", "JSON is passed on byte for byte"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(lonely_cli: Cli, shell: str) -> None:
    done = lonely_cli.run("completion", shell)
    assert done.returncode == 0
    assert f"_GPU_DEV_COMPLETE={shell}_complete" in done.stdout


def complete(cli: Cli, *words: str) -> set[str]:
    env: dict[str, str | None] = {
        "_GPU_DEV_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["gpu-dev", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = cli.run(env=env)
    assert done.returncode == 0, done.stderr
    return {line.partition(",")[2] for line in done.stdout.splitlines() if line}


def test_the_shell_completes_commands_options_and_ids(cli: Cli, api: FakeApi) -> None:
    live, _ended = api.add(status="active"), api.add(status="expired")
    assert complete(cli, "res") == {"reserve"}
    assert "--gpus" in complete(cli, "reserve", "--g")
    assert complete(cli, "status", live.reservation_id[:2]) == {live.reservation_id[:8]}
    assert "config" in complete(cli, "con")


def test_completion_keeps_quiet_when_the_api_is_away(cli: Cli, api: FakeApi) -> None:
    api.close()
    assert complete(cli, "status", "a") == set()


def test_the_version_is_told_quickly_and_slowly(lonely_cli: Cli) -> None:
    from gpudev import __version__

    assert lonely_cli.run("--version").stdout == f"gpu-dev {__version__}\n"
    slow = subprocess.run(
        [sys.executable, "-c", "import sys; from gpudev.cli.app import invoke; sys.exit(invoke(['--version']))"],
        env={**lonely_cli.environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert slow.stdout == f"gpu-dev {__version__}\n"
