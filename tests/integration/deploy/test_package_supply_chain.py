"""`make audit` and `make sbom`: what is asked, what is said, and that silence is never taken for an all-clear."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCK = """\
fine==1.0 \\
    --hash=sha256:{}
weak==2.5 ; python_full_version < '3.12' \\
    --hash=sha256:{} \\
    --hash=sha256:{}
""".format("0" * 64, "1" * 64, "2" * 64)


class Advisories:
    """An OSV service that knows of one weakness."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: bytes | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked += json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
                weak = [{"vulns": [{"id": "GHSA-1"}]} if q["package"]["name"] == "weak" else {} for q in outer.asked]
                body = outer.answer if outer.answer is not None else json.dumps({"results": weak}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return None

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def advisories() -> Iterator[Advisories]:
    made = Advisories()
    serving = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


def packages(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "packages"), *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def lock(tmp_path: Path) -> str:
    path = tmp_path / "lock.txt"
    path.write_text(LOCK)
    return str(path)


def test_a_known_weakness_is_named_and_fails(advisories: Advisories, lock: str) -> None:
    done = packages("audit", "--lock", lock, "--advisories", advisories.url)
    assert done.returncode == 1
    assert done.stdout == "weak 2.5: GHSA-1\n"
    assert [(query["package"]["name"], query["version"]) for query in advisories.asked] == [
        ("fine", "1.0"),
        ("weak", "2.5"),
    ]


def test_nothing_known_is_an_all_clear(advisories: Advisories, lock: str) -> None:
    advisories.answer = b'{"results": [{}, {}]}'
    done = packages("audit", "--lock", lock, "--advisories", advisories.url)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("answer", [None, b"<html>", b"{}", b'{"results": []}', b'{"results": [{}]}'])
def test_nobody_to_ask_is_no_all_clear(advisories: Advisories, lock: str, answer: bytes | None) -> None:
    advisories.answer = answer
    url = advisories.url if answer is not None else "http://127.0.0.1:9"
    done = packages("audit", "--lock", lock, "--advisories", url, "--timeout", "5")
    assert done.returncode == 2
    assert "NOT CHECKED" in done.stderr


def test_the_bill_of_materials_has_every_locked_package_with_its_hashes() -> None:
    made = [packages("sbom").stdout for _ in range(2)]
    assert made[0] == made[1], "it can be made again, byte for byte"
    bill = json.loads(made[0])
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    names = {component["name"] for component in bill["components"]}
    assert {"fastapi", "asyncpg", "pgmq", "uvicorn"} <= names
    assert all(component["hashes"] for component in bill["components"])
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(set(references)) == len(references)
    assert bill["dependencies"][0]["dependsOn"] == references
    assert bill["metadata"]["component"]["name"] == "gpu-dev"
