"""A real nginx before something, with TLS, as docs/operations/reverse-proxies.md says; run from a folder of its own."""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpudev.adapters.tls import ensure_self_signed
from gpudev.ports.clock import SystemClock
from support.polling import eventually
from support.ports import free_port

DOCS = Path(__file__).parents[3] / "docs" / "operations" / "reverse-proxies.md"
_AROUND = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{servers}
}}
"""


@dataclass(frozen=True)
class Nginx:
    url: str
    certificate: Path
    folder: Path

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))


def find_nginx() -> str | None:
    """Ordinary users' paths leave out where it often is."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


@contextlib.contextmanager
def nginx_before(program: str, url: str, folder: Path, changes: Mapping[str, str]) -> Iterator[Nginx]:
    """`changes`: what is otherwise than in the documentation."""
    folder.mkdir()
    files = ensure_self_signed(folder / "tls", "localhost", SystemClock().now())
    port = free_port()
    own = {
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "server 127.0.0.1:7480;": f"server {urlsplit(url).netloc};",
        "/etc/ssl/gpu.example.com.pem": str(files.certificate),
        "/etc/ssl/gpu.example.com.key": str(files.key),
    }
    servers = _documented()
    for said, instead in {**own, **changes}.items():
        assert said in servers, f"the documented configuration has no {said!r} any more"
        servers = servers.replace(said, instead)
    # Root's workers would be somebody else, who cannot reach this folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(_AROUND.format(user=user, folder=folder, servers=servers))
    command = [program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    with (folder / "output").open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        eventually(lambda: _listens(port, running, folder), "nginx does not listen")
        yield Nginx(f"https://localhost:{port}", files.certificate, folder)
    finally:
        running.terminate()
        running.wait(20)


def _documented() -> str:
    found = re.search(r"```nginx\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def _listens(port: int, running: "subprocess.Popen[bytes]", folder: Path) -> bool:
    assert running.poll() is None, (folder / "output").read_text() + (folder / "error.log").read_text()
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
