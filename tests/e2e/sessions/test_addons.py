"""The inside of a dev server, as people change it from the command line: colleagues with real ssh, and Jupyter."""

import http.server
import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudev.adapters.key_pairs import generate_key_pair
from support.paths import SUPPORT
from support.polling import eventually
from support.sessions.jupyter_wheel import write_jupyter_wheel
from support.system.embedded_system import System

pytestmark = pytest.mark.slow
STUB = SUPPORT / "sessions" / "jupyter_stub.py"
Job = dict[str, Any]


@pytest.fixture(scope="module")
def colleague(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    private, public = generate_key_pair()
    path = Path(tmp_path_factory.mktemp("colleague")) / "key"
    path.write_text(private)
    path.chmod(0o600)
    return path, public


@pytest.fixture(scope="module")
def github(colleague: tuple[Path, str]) -> Iterator[str]:
    """Not GitHub, but real HTTP: octocat publishes a key, and empty none."""
    published = {"/octocat.keys": f"{colleague[1]}\n", "/empty.keys": ""}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = published.get(self.path)
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, github: str) -> Iterator[System]:
    home = Path(tmp_path_factory.mktemp("home"))
    running = System.start(home, environment={"GPU_DEV_GITHUB_URL": github})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def job(system: System) -> Job:
    return system.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")


def gets_in(system: System, job: Job, key: Path) -> bool:
    options = [*system.ssh_options(job)[:-2], "-o", "IdentitiesOnly=yes", "-i", str(key), "-p", str(job["node_port"])]
    command = ["ssh", *options, f"dev@{job['node_ip']}", "echo in"]
    done = subprocess.run(command, env=system.environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout == "in\n"


def test_a_colleague_is_let_in_survives_the_control_plane_and_is_removed(
    system: System, job: Job, colleague: tuple[Path, str]
) -> None:
    short, key = job["job_id"][:8], colleague[0]
    assert not gets_in(system, job, key)
    refused = system.run("users", "add", short, "empty", code=5)
    assert "no usable SSH key of 'empty' on GitHub" in refused.stderr
    assert "no GitHub user named" in system.run("users", "add", short, "nobody", code=5).stderr
    said = system.run("users", "add", short, "OctoCat").stdout
    assert said.startswith("octocat can log in now:\n  ssh -p ")
    assert gets_in(system, job, key)
    assert [user["github_user"] for user in system.ask("users", "list")["users"]] == ["octocat"]
    assert "Users        octocat" in system.run("status", short).stdout
    system.kill("processor")
    system.kill("api")
    eventually(system.ready, "the API did not come back")
    assert gets_in(system, job, key)
    removed = system.run("users", "remove", short, "stranger", "octocat", code=4)
    assert removed.stdout == "octocat can no longer log in.\n"
    assert "stranger has no access" in removed.stderr
    assert "`gpu-dev users list" in removed.stderr
    assert not gets_in(system, job, key)
    assert "has no access" in system.run("users", "remove", short, "octocat", code=4).stderr
    assert system.run("users", "list").stdout.startswith("No collaborators")


def test_jupyter_is_enabled_opened_and_disabled_and_survives_the_control_plane(system: System, job: Job) -> None:
    short = job["job_id"][:8]
    assert system.run("jupyter", "status", short).stdout == "Jupyter is off.\n"
    assert "gpu-dev jupyter enable" in system.run("jupyter", "open", short, code=5).stderr
    refused = system.run("jupyter", "enable", short, code=5)
    assert "gpu-dev jupyter enable --install" in refused.stderr
    install = (
        "mkdir -p bin && cat >bin/jupyter-lab && chmod +x bin/jupyter-lab && echo 'PATH=~/bin:$PATH' >.bash_profile"
    )
    done = subprocess.run([*system.ssh(job), install], input=STUB.read_bytes(), env=system.environment, check=False)
    assert done.returncode == 0
    link = system.run("jupyter", "enable", short).stdout.strip()
    assert f"Jupyter      ready, gpu-dev jupyter open {short}" in system.run("status", short).stdout
    first = ask_jupyter(*follow(link))
    system.kill("processor")
    system.kill("api")
    eventually(system.ready, "the API did not come back")
    again = follow(system.ask("jupyter", "open", short)["url"], link)
    assert ask_jupyter(*again)["pid"] == first["pid"], "it went on meanwhile"
    assert system.run("jupyter", "disable", short).stdout == "Jupyter is off.\n"
    with pytest.raises(urllib.error.HTTPError) as gone:
        ask_jupyter(*again)
    assert gone.value.code == 409
    gone.value.close()
    history = [event["message"] for event in system.ask("status", short, "--events")["events"]]
    assert "Jupyter is ready" in history


def test_jupyter_is_installed_on_request(system: System, tmp_path: Path) -> None:
    job = system.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")
    short, wheel = job["job_id"][:8], write_jupyter_wheel(tmp_path)
    prepare = (
        f"mkdir -p .config/pip && cat >{wheel.name} && "
        'printf "[global]\\nno-index = true\\nfind-links = $HOME\\n" >.config/pip/pip.conf'
    )
    command = [*system.ssh(job), prepare]
    done = subprocess.run(command, input=wheel.read_bytes(), env=system.environment, check=False)
    assert done.returncode == 0
    assert "gpu-dev jupyter enable --install" in system.run("jupyter", "enable", short, code=5).stderr
    installed = system.run("jupyter", "enable", short, "--install")
    assert "Installing JupyterLab into ~/.local/share/gpu-dev/jupyter" in installed.stderr
    assert ask_jupyter(*follow(installed.stdout.strip()))["method"] == "GET"
    again = system.run("jupyter", "enable", short, "--install")
    assert "installed already" in again.stderr
    system.run("cancel", short, "--yes")


def follow(link: str, base: str = "") -> tuple[str, str]:
    """The address of Jupyter, and the cookie that was given."""
    url = link if "://" in link else base[: base.index("/v1/")] + link
    with urllib.request.urlopen(url, timeout=30) as page:
        cookie = page.headers["Set-Cookie"].partition(";")[0]
    return url.partition("enter?")[0], cookie


def ask_jupyter(url: str, cookie: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}api/status", headers={"Cookie": cookie})
    with urllib.request.urlopen(request, timeout=30) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    return told
