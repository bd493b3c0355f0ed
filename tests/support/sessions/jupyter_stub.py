#!/usr/bin/env python3
"""Not Jupyter, but started as it is: it heeds the same options and the same token, answers over HTTP what it was asked
with, and echoes what comes in a WebSocket. For what must be seen of the way there; Jupyter is tried elsewhere."""

import base64
import hashlib
import http.server
import json
import os
import socket
import sys

OPTIONS = dict(argument.removeprefix("--ServerApp.").split("=", 1) for argument in sys.argv[1:] if "=" in argument)
TOKEN = os.environ["JUPYTER_TOKEN"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"token {TOKEN}":
            return self.answer(403, {"message": "Forbidden"})
        if not self.path.startswith(OPTIONS["base_url"]):
            return self.answer(404, {"message": "not below the base url"})
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.echo()
        if "/odd/" in self.path:
            return self.answer_oddly(self.path.rpartition("/")[2])
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size).decode()
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length).decode()
                self.rfile.readline()
            self.rfile.readline()
        told = {
            "method": self.command,
            "path": self.path,
            "body": body,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "pid": os.getpid(),
        }
        return self.answer(200, told)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815

    def answer(self, status: int, told: dict[str, object]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", f"_xsrf=of-jupyter; Path={OPTIONS['base_url']}")
        self.send_header("Set-Cookie", "gpudev_jupyter=planted; Path=/")
        self.end_headers()
        self.wfile.write(body)

    def answer_oddly(self, how: str) -> None:
        """And hang up."""
        answers = {
            "cut": "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nnot all of it",
            "cut-chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsome.\r\n",
            "no-http": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsome.\r\nno length\r\n",
            "no-status": "HTTP/1.1 799 Whatever\r\nContent-Length: 0\r\n\r\n",
            "nothing": "",
            "endless-interim": "HTTP/1.1 100 Continue\r\n\r\n" * 1000,
        }
        self.wfile.write(answers[how].encode())
        self.close_connection = True

    def echo(self) -> None:
        """One text message at a time, short ones only."""
        guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1((self.headers["Sec-WebSocket-Key"] + guid).encode()).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.send_header("Set-Cookie", "gpudev_jupyter=planted; Path=/")
        self.send_header("Strict-Transport-Security", "max-age=0")
        self.end_headers()
        while head := self.rfile.read(2):
            size = head[1] & 0x7F
            mask = self.rfile.read(4)
            message = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(size)))
            self.wfile.write(bytes((head[0], len(message))) + message)
        self.close_connection = True

    def log_message(self, *_: object) -> None: ...


class OnSocket(http.server.ThreadingHTTPServer):
    """As Jupyter does on one machine."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.socket.accept()[0], ("localhost", 0)


def on_port() -> http.server.ThreadingHTTPServer:
    """As Jupyter does in the container image."""
    return http.server.ThreadingHTTPServer(("127.0.0.1", int(OPTIONS["port"])), Handler)


if __name__ == "__main__":
    if os.environ.get("STUB_REFUSES"):
        sys.exit("this stub does not want to")
    (OnSocket(OPTIONS["sock"], Handler) if "sock" in OPTIONS else on_port()).serve_forever()
