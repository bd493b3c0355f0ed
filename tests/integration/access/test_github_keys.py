"""GitHub's published keys, asked from a real HTTP server that behaves as GitHub does, and as nobody should."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from gpudev.adapters.github_keys import GitHubKeys
from gpudev.domain.errors import Invalid, Unavailable
from support.api.harness import public_key

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def http(status: str, body: str = "", *headers: str) -> Answer:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", "Connection: close", *headers]

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join([*lines, "", body]).encode())
        await writer.drain()

    return answer


@dataclass
class FakeGitHub:
    """Not GitHub, but real HTTP: it answers as the test says and remembers what was asked."""

    url: str = ""
    answer: Answer = field(default_factory=lambda: http("404 Not Found"))
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(request.splitlines()[0])
            await self.answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def github() -> AsyncIterator[FakeGitHub]:
    fake = FakeGitHub()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield fake
    server.close()


@pytest.fixture
async def source(github: FakeGitHub) -> AsyncIterator[GitHubKeys]:
    keys = GitHubKeys(github.url + "/", seconds=0.5)
    yield keys
    await keys.close()


async def test_published_keys_are_read_from_the_users_own_page(github: FakeGitHub, source: GitHubKeys) -> None:
    github.answer = http("200 OK", f"{public_key('a')}\n{public_key('b')}\nssh-dss AAAA\n")
    assert await source.public_keys("octocat") == (public_key("a"), public_key("b"))
    assert github.asked == ["GET /octocat.keys HTTP/1.1"]


async def test_an_unknown_user_is_the_askers_mistake(github: FakeGitHub, source: GitHubKeys) -> None:
    with pytest.raises(Invalid, match="nobody") as caught:
        await source.public_keys("nobody")
    assert caught.value.field == "github_user"


@pytest.mark.parametrize("body", ["", "\n", "Not Found", "ssh-dss AAAA\n"])
async def test_a_user_without_usable_keys_is_told_both_ways_out(
    github: FakeGitHub, source: GitHubKeys, body: str
) -> None:
    github.answer = http("200 OK", body)
    with pytest.raises(Invalid, match="ssh_public_keys"):
        await source.public_keys("octocat")


@pytest.mark.parametrize("name", ["../admin", "a/b", "a?b", "", "a.keys#", "@evil.example/x"])
async def test_no_request_is_made_for_what_is_no_user_name(github: FakeGitHub, source: GitHubKeys, name: str) -> None:
    with pytest.raises(Invalid):
        await source.public_keys(name)
    assert github.asked == []


@pytest.mark.parametrize("status", ["500 Oops", "429 Slow Down", "403 Forbidden"])
async def test_githubs_troubles_are_not_the_askers(github: FakeGitHub, source: GitHubKeys, status: str) -> None:
    github.answer = http(status)
    with pytest.raises(Unavailable, match="GitHub answered"):
        await source.public_keys("octocat")


async def test_a_redirect_is_not_followed(github: FakeGitHub, source: GitHubKeys) -> None:
    github.answer = http("302 Found", "", f"Location: {github.url}/elsewhere.keys")
    with pytest.raises(Unavailable):
        await source.public_keys("octocat")
    assert len(github.asked) == 1


async def test_an_endless_answer_is_cut_off(github: FakeGitHub, source: GitHubKeys) -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while sent < 50_000_000:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    github.answer = endless
    with pytest.raises(Unavailable, match="longer than"):
        await source.public_keys("octocat")
    assert sent < 50_000_000


async def test_an_answer_that_drips_is_given_up_after_the_whole_time(github: FakeGitHub, source: GitHubKeys) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)  # slow on purpose

    github.answer = drip
    begun = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="does not answer"):
        await source.public_keys("octocat")
    assert asyncio.get_running_loop().time() - begun < 2


async def test_a_host_that_is_not_there_is_unavailable() -> None:
    keys = GitHubKeys("http://127.0.0.1:9", seconds=0.5)
    with pytest.raises(Unavailable, match="does not answer"):
        await keys.public_keys("octocat")
    await keys.close()
