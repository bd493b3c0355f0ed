"""`gpu-dev proxy-command` as if the API had said that the proxy is at the given address."""

import sys

from gpudev.cli import stdio_pipe
from gpudev.cli.command_session import CommandSession
from gpudev.sdk.http.session_endpoints import create_proxy_token
from gpudev.sdk.http.transport import HttpRequest, HttpTransport, WebSocketConnection

url, job_id = sys.argv[1:]
token = CommandSession().api.fetch(create_proxy_token(job_id)).value
headers = {"Authorization": f"Bearer {token.token}"}
opened = HttpTransport(url).open_websocket(HttpRequest("GET", f"/v1/jobs/{job_id}/ssh", headers=headers))
assert isinstance(opened, WebSocketConnection), opened
stdio_pipe.StdioPipe(opened.socket, stdio_pipe.WebSocketFraming()).run(opened.received)
