"""What a command in a pod is given to read: all of it, in order, and then its end.

On a pod of paper, which answers when it has read that end. Fake nodes are given nothing to read: their commands never
see the end, and a server whose command ends before it was read takes the line down with whatever had been written.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, connect_api
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.settings import KubernetesSettings

STDIN, STDOUT, STDERR, RESULT, CLOSE = 0, 1, 2, 3, 255


class PaperPod:
    """Reads until the end of its input, then says it again and how that went."""

    def __init__(self, *, protocol: str = "v5.channel.k8s.io", result: str = '{"status": "Success"}') -> None:
        self._protocol = protocol
        self._result = result
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(self._protocol,))
        await socket.prepare(request)
        self.asked = request.query.getall("command")
        read = b""
        while "stdin" in request.query and (data := await socket.receive_bytes()) != bytes((CLOSE, STDIN)):
            assert data[0] == STDIN
            read += data[1:]
        for start in range(0, len(read), 50_000):
            await socket.send_bytes(bytes((STDOUT,)) + read[start : start + 50_000])
        await socket.send_bytes(bytes((STDERR,)) + b"its words\n")
        if self._result:
            await socket.send_bytes(bytes((RESULT,)) + self._result.encode())
        await socket.close()
        return socket


@asynccontextmanager
async def api_of(pod: PaperPod, folder: Path) -> AsyncIterator[KubernetesApi]:
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/gpu-dev/pods/one/exec", pod.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    named = {"clusters": ("cluster", {"server": f"http://127.0.0.1:{port}"}), "users": ("user", {"token": "a"})}
    sections = {section: [{"name": "a", key: value}] for section, (key, value) in named.items()}
    contexts = [{"name": "a", "context": {"cluster": "a", "user": "a"}}]
    path = folder / "kubeconfig"
    path.write_text(json.dumps({**sections, "contexts": contexts, "current-context": "a"}))
    api = connect_api(KubernetesSettings(kubeconfig=str(path), namespace="gpu-dev"))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


async def test_a_command_reads_all_it_is_given_and_then_its_end(tmp_path: Path) -> None:
    pod = PaperPod()
    message = "ä message\n".encode() * 20_000
    async with api_of(pod, tmp_path) as api:
        assert await api.exec_in_pod("one", "main", ["cat", "a b; $HOME"], message) == message
        assert pod.asked == ["cat", "a b; $HOME"]
        assert await api.exec_in_pod("one", "main", ["true"]) == b"", "and nobody waits for input that nobody sends"


async def test_a_command_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    async with api_of(PaperPod(result='{"status": "Failure", "message": "exit code 3"}'), tmp_path) as api:
        with pytest.raises(ClusterError, match="its words"):
            await api.exec_in_pod("one", "main", ["false"], b"some input")


async def test_a_line_that_is_cut_before_the_result_is_no_success(tmp_path: Path) -> None:
    async with api_of(PaperPod(result=""), tmp_path) as api:
        with pytest.raises(Unavailable, match="lost before the command ended"):
            await api.exec_in_pod("one", "main", ["cat"], b"some input")


async def test_a_server_that_cannot_tell_the_end_of_input_is_given_none(tmp_path: Path) -> None:
    async with api_of(PaperPod(protocol="v4.channel.k8s.io"), tmp_path) as api:
        with pytest.raises(ClusterError, match=r"Kubernetes 1\.30 or newer"):
            await api.exec_in_pod("one", "main", ["cat"], b"some input")
        assert await api.exec_in_pod("one", "main", ["true"]) == b""
