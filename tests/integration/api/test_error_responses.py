"""Whatever is sent, the answer is a sentence with a 4xx; only our own faults are 5xx, and they say nothing more."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import structlog

from gpudev.api.http.routing import MAX_BODY, MAX_DEPTH, MAX_DISCARDED
from gpudev.domain import errors
from gpudev.domain.errors import Unavailable
from gpudev.http_edge.error_responses import HTTP_STATUS, http_status
from support.api.harness import Api, public_key, refused

JSON = {"Content-Type": "application/json"}

NOT_JSON = [
    b"{",
    b"{'gpu_count': 1}",
    b'{"gpu_count": 1,}',
    b'{"gpu_count": NaN}',
    b'{"gpu_count": Infinity}',
    b'{"duration_hours": 1e400}',
    b'{"duration_hours": -1e400}',
    b'{"name": "\\ud800"}',
    b'{"name": "\\udc00\\ud800"}',
    b'{"name": "\xff"}',
    b'{"name": "a\x00b"}',
    b'{"gpu_count": 01}',
    b"\x1f\x8b\x08\x00\x00",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 2000 + b"]" * 2000,
]


async def send(client: httpx2.AsyncClient, body: bytes, **headers: str) -> httpx2.Response:
    return await client.post("/v1/jobs/submit", content=body, headers=JSON | headers)


async def test_what_is_not_json_is_malformed(ada: httpx2.AsyncClient, subtests: pytest.Subtests) -> None:
    for body in NOT_JSON:
        with subtests.test(body=body[:40]):
            detail = refused(await send(ada, body), 400, "malformed")
            assert "JSON" in detail
            assert "\n" not in detail


async def test_json_that_is_no_object_is_refused(ada: httpx2.AsyncClient, subtests: pytest.Subtests) -> None:
    for body in (b"[]", b"1", b'"text"', b"null", b"true", b"[[[[[[[[[[1]]]]]]]]]]"):
        with subtests.test(body=body):
            assert "object" in refused(await send(ada, body), 422, "invalid")


async def test_deep_and_wide_json_that_is_no_request_is_refused(ada: httpx2.AsyncClient) -> None:
    for depth, status, code, field in ((500, 400, "malformed", None), (MAX_DEPTH - 1, 422, "invalid", "name")):
        deep: Any = "\x00"
        for _ in range(depth):
            deep = [deep]
        refused(await send(ada, json.dumps({"name": deep}).encode()), status, code, field)
    wide = json.dumps({f"field{number}": number for number in range(5000)}).encode()
    detail = refused(await send(ada, wide), 422, "invalid", "field0")
    assert len(detail) < 500


async def test_an_escaped_backslash_before_u0000_is_no_nul(ada: httpx2.AsyncClient) -> None:
    body = {"name": "\\u0000", "gpu_type": "h100", "ssh_public_keys": [public_key()]}
    assert (await ada.post("/v1/jobs/submit", json=body)).status_code == 202


async def test_a_body_must_say_that_it_is_json(ada: httpx2.AsyncClient, subtests: pytest.Subtests) -> None:
    for media_type in (
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "json",
    ):
        with subtests.test(media_type=media_type):
            answer = await send(ada, b'{"gpu_type": "h100"}', **{"Content-Type": media_type})
            refused(answer, 415, "unsupported_media")


async def test_a_charset_beside_the_media_type_is_fine(ada: httpx2.AsyncClient) -> None:
    answer = await send(ada, b"{}", **{"Content-Type": "Application/JSON; charset=utf-8"})
    refused(answer, 422, "invalid", "ssh_public_keys")


async def test_an_empty_body_is_malformed(ada: httpx2.AsyncClient) -> None:
    refused(await send(ada, b""), 400, "malformed")


async def test_too_large_a_body_is_refused(ada: httpx2.AsyncClient) -> None:
    refused(await send(ada, b" " * (MAX_BODY + 1)), 413, "too_large")
    asks_first = {"Content-Length": str(2**70), "Expect": "100-continue"}
    refused(await send(ada, b"{}", **asks_first), 413, "too_large")


async def test_a_body_without_an_end_is_not_read_for_ever(ada: httpx2.AsyncClient) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    answer = await ada.post("/v1/jobs/submit", content=pieces(), headers=JSON)
    refused(answer, 413, "too_large")
    assert sent <= MAX_DISCARDED + 2 * 65536


@pytest.mark.slow
async def test_too_large_a_body_gets_its_answer_over_a_real_connection(ada: httpx2.AsyncClient, address: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    async with httpx2.AsyncClient(base_url=address, headers=ada.headers) as real:
        for body in (b" " * (MAX_BODY + 1), pieces()):
            answer = await real.post("/v1/jobs/submit", content=body, headers=JSON)
            refused(answer, 413, "too_large")
        assert (await real.get("/v1/jobs")).status_code == 200


async def test_a_body_of_just_the_limit_is_read(ada: httpx2.AsyncClient) -> None:
    body = b'{"gpu_type": "nope"}'
    refused(await send(ada, body + b" " * (MAX_BODY - len(body))), 422, "invalid", "gpu_type")


async def test_several_faults_are_told_together(ada: httpx2.AsyncClient) -> None:
    answer = await ada.post("/v1/jobs/submit", json={"gpu_count": "two", "nmae": "x", "ssh_public_keys": "x"})
    detail = refused(answer, 422, "invalid", "gpu_count")
    assert "gpu_count must be a valid integer" in detail
    assert "nmae is not known here" in detail
    assert "ssh_public_keys must be a valid list" in detail


async def test_an_unknown_path_and_a_wrong_method_are_problems_too(ada: httpx2.AsyncClient) -> None:
    refused(await ada.get("/v1/nothing"), 404, "not_found")
    refused(await ada.get("/%00%ff"), 404, "not_found")
    refused(await ada.get("/v1/jobs/"), 404, "not_found")
    answer = await ada.delete("/v1/jobs")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


async def test_every_answer_carries_a_request_id(ada: httpx2.AsyncClient, api: Api) -> None:
    own = await ada.get("/v1/jobs", headers={"X-Request-ID": "trace-1.2"})
    assert own.headers["x-request-id"] == "trace-1.2"
    for odd in ("", "a b", "x" * 65, "<script>", "a\tb"):
        made = await api.anonymous().get("/health/live", headers={"X-Request-ID": odd})
        assert len(made.headers["x-request-id"]) == 32
        int(made.headers["x-request-id"], 16)
    document = await ada.get("/openapi.json")
    assert (document.status_code, "x-request-id" in document.headers) == (200, True)


class Broken:
    """A store that fails in a way nobody foresaw."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: object, **__: object) -> None:
            raise self._error

        return fail


async def test_the_unforeseen_is_a_500_that_tells_only_its_request_id(api: Api) -> None:
    secret = await api.secret()
    api.restart(reservations=Broken(RuntimeError("password=hunter2")))
    client = api.anonymous({"Authorization": f"Bearer {secret}"})
    with structlog.testing.capture_logs() as lines:
        answer = await client.get("/v1/jobs")
    detail = refused(answer, 500, "internal")
    assert answer.headers["x-request-id"] in detail
    assert "hunter2" not in answer.text
    (line,) = [line for line in lines if line["event"] == "http.unexpected_error"]
    assert line["exc_info"]
    assert line["path"] == "/v1/jobs"


async def test_a_database_that_is_away_is_a_503_to_try_again(api: Api) -> None:
    secret = await api.secret()
    api.restart(reservations=Broken(Unavailable("the database does not answer: ('10.0.0.5', 5432)")))
    client = api.anonymous({"Authorization": f"Bearer {secret}"})
    answer = await client.get("/v1/jobs")
    assert refused(answer, 503, "unavailable") == "the database does not answer"
    assert answer.headers["retry-after"]


def test_every_error_has_a_status_and_a_subclass_has_its_parents() -> None:
    def below(kind: type[errors.GpuDevError]) -> list[type[errors.GpuDevError]]:
        children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
        return [kind, *(one for child in children for one in below(child))]

    for kind in below(errors.GpuDevError):
        assert 400 <= http_status(kind("x")) < 600
        if kind not in HTTP_STATUS:
            assert http_status(kind("x")) == http_status(kind.__mro__[1]("x"))
    assert http_status(errors.DiskHeld("x")) == 409
