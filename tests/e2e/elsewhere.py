"""`gpu-dev proxy-command` as if the API had said that the proxy is at the given address."""

import sys

from gpudev.cli import stdio_pipe
from gpudev.cli.command_session import Session
from gpudev.sdk.http.transport import Line, Request, Transport
from gpudev.wire.proxy import ProxyToken

url, job_id = sys.argv[1:]
token = Session().api.post(ProxyToken, f"/v1/jobs/{job_id}/proxy-token").value
headers = {"Authorization": f"Bearer {token.token}"}
opened = Transport(url).open_websocket(Request("GET", f"/v1/jobs/{job_id}/ssh", headers=headers))
assert isinstance(opened, Line), opened
stdio_pipe.Pipe(opened.socket, stdio_pipe.Framed()).run(opened.first)
