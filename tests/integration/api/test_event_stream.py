"""Following a reservation: prompt, complete, in order, over as soon as it is over, and nothing left behind."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx2
import pytest
import uvicorn

from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.api import app
from gpudev.api.http.responses import EventStream, StreamItem
from gpudev.bootstrap.listeners import GracefulServer
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.http_edge.client_ip import ClientIpResolver
from gpudev.http_edge.rate_limits import ConcurrencyLimits
from gpudev.wire.reservations import JobEvent, JobView
from gpudev.workflows.reservation_views import ReservationViews
from gpudev.workflows.reservations.reservation_stream import ReservationStream
from support.api.harness import Api, identifier, refused, submit
from support.polling import eventually_async
from support.ports import free_port


@dataclass(frozen=True)
class Sent:
    event: str
    data: dict[str, Any]
    id: int | None = None


async def read_stream(answer: httpx2.Response) -> AsyncGenerator[Sent, None]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Sent(fields["event"], json.loads(fields["data"]), int(fields["id"]) if "id" in fields else None)
            fields = {}


@asynccontextmanager
async def follow(
    address: str, client: httpx2.AsyncClient, view: dict[str, Any], **headers: str
) -> AsyncIterator[AsyncGenerator[Sent, None]]:
    path = f"/v1/jobs/{view['job_id'][:8]}/events"
    async with (
        httpx2.AsyncClient(base_url=address, headers=client.headers, timeout=20) as real,
        real.stream("GET", path, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield read_stream(answer)


@pytest.mark.slow
async def test_a_reservation_is_followed_from_submit_to_its_end(
    ada: httpx2.AsyncClient, api: Api, address: str
) -> None:
    view = await submit(ada)
    async with follow(address, ada, view) as stream:
        first = await anext(stream)
        assert (first.event, first.data["status"], first.id) == ("job", "pending", None)
        assert first.data["reservation_id"] == view["reservation_id"]
        second = await anext(stream)
        assert (second.event, second.data["kind"]) == ("event", "submitted")
        assert second.id == second.data["event_id"]
        await api.world.turn()
        seen = [await anext(stream)]
        while seen[-1].data["status"] != "active" or seen[-1].event != "job":
            seen.append(await anext(stream))
        assert seen[-1].data["ssh_command"]
        await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
        seen += [sent async for sent in stream]
    kinds = [sent.data["kind"] for sent in seen if sent.event == "event"]
    assert kinds[-1] == "cancelled"
    assert kinds.index("active") < kinds.index("cancelled")
    assert (seen[-1].event, seen[-1].data["status"]) == ("job", "cancelled")
    numbers = [sent.id for sent in seen if sent.id is not None]
    assert numbers == sorted(set(numbers))


@pytest.fixture
def seldom_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, a stream looks again after a minute."""
    monkeypatch.setattr(app, "ReservationStream", partial(ReservationStream, poll_seconds=60.0))


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_looking")
async def test_a_change_is_told_at_once_without_waiting_for_the_next_look(
    ada: httpx2.AsyncClient, address: str
) -> None:
    view = await submit(ada)
    async with follow(address, ada, view) as stream:
        await anext(stream)
        await anext(stream)
        begun = asyncio.get_running_loop().time()
        await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
        rest = [sent async for sent in stream]
        assert asyncio.get_running_loop().time() - begun < 30
    assert [sent.event for sent in rest] == ["event", "job"]


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_looking")
async def test_a_place_in_the_line_that_moves_is_told(ada: httpx2.AsyncClient, api: Api, address: str) -> None:
    await submit(ada, gpu_count=16)
    await api.world.turn()
    ahead, view = await submit(ada, gpu_count=16), await submit(ada, gpu_count=16)
    await api.world.turn()
    async with follow(address, ada, view) as stream:
        assert (await anext(stream)).data["queue_position"] == 2
        api.world.clock.move(seconds=1)  # what is newer is told: the row, until the plan that goes with it is published
        await ada.post(f"/v1/jobs/{ahead['job_id']}/cancel")
        await api.world.turn()
        async with asyncio.timeout(30):
            while (sent := await anext(stream)).event != "job":
                pass
        assert sent.data["queue_position"] == 1


@pytest.mark.slow
async def test_who_comes_back_gets_only_the_lines_they_missed(ada: httpx2.AsyncClient, api: Api, address: str) -> None:
    view = await submit(ada)
    await api.world.turn()
    await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    async with follow(address, ada, view) as stream:
        everything = [sent async for sent in stream]
    lines = [sent for sent in everything if sent.event == "event"]
    assert [sent.data["kind"] for sent in lines][:1] == ["submitted"]
    async with follow(address, ada, view, **{"Last-Event-ID": str(lines[1].id)}) as stream:
        missed = [sent async for sent in stream]
    assert missed == [everything[0], *lines[2:]]


@pytest.mark.slow
async def test_who_leaves_leaves_nothing_behind(ada: httpx2.AsyncClient, api: Api, address: str) -> None:
    changes = api.services.changes
    assert isinstance(changes, PostgresReservationChanges)
    view = await submit(ada)
    tasks = len(asyncio.all_tasks())
    async with follow(address, ada, view) as stream:
        await anext(stream)
        await eventually_async(lambda: bool(changes._watchers))
    await eventually_async(lambda: not changes._watchers)
    await eventually_async(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_a_last_event_id_that_never_was_is_refused(ada: httpx2.AsyncClient, subtests: pytest.Subtests) -> None:
    view = await submit(ada)
    for number in ("-1", "x", "1.5", str(2**63), "9" * 5000, "\u00b2"):
        with subtests.test(number=number[:20]):
            headers = {"Last-Event-ID": number.encode("latin-1")}
            answer = await ada.get(f"/v1/jobs/{view['job_id']}/events", headers=headers)  # type: ignore[arg-type]
            refused(answer, 422, "invalid", "Last-Event-Id")


def viewing(api: Api) -> ReservationViews:
    return ReservationViews(api.services.plans, api.services.clock, api.services.settings.timing)


class Deaf:
    """Changes that are never heard of: the connection is lost, or ends at once."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends

    @asynccontextmanager
    async def subscribe(self, reservation_id: ReservationId) -> AsyncIterator[AsyncIterator[None]]:
        async def silence() -> AsyncIterator[None]:
            if not self._ends:
                await asyncio.Event().wait()
            return
            yield

        yield silence()


@pytest.mark.parametrize("ends", [False, True])
async def test_lost_notifications_delay_and_never_hide(ada: httpx2.AsyncClient, api: Api, ends: bool) -> None:
    view = await submit(ada)
    watching = ReservationStream(api.services.reservations, Deaf(ends=ends), viewing(api), poll_seconds=0.02)
    stream = watching.watch(identifier(view))
    assert isinstance(await anext(stream), JobView)
    assert isinstance(await anext(stream), JobEvent)
    assert await anext(stream) is None
    await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    rest = [item async for item in stream if item is not None]
    assert [type(item) for item in rest] == [JobEvent, JobView]
    assert rest[-1].status == "cancelled"


class Flickering:
    """The real store, away whenever the test says so."""

    def __init__(self, api: Api) -> None:
        self._real = api.services.reservations
        self.away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def find_reservation(self, reservation_id: ReservationId) -> Reservation | None:
        if self.away:
            raise Unavailable("the database does not answer")
        return await self._real.find_reservation(reservation_id)


async def test_a_database_that_goes_away_interrupts_nobody(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    store = Flickering(api)
    watching = ReservationStream(store, Deaf(ends=False), viewing(api), poll_seconds=0.02)  # type: ignore[arg-type]
    stream = watching.watch(identifier(view))
    await anext(stream)
    await anext(stream)
    store.away = True
    for _ in range(3):
        assert await anext(stream) is None
    store.away = False
    await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    rest = [item async for item in stream if item is not None]
    assert rest[-1].status == "cancelled"


async def allowed() -> bool:
    return True


async def test_silence_is_broken_by_comments_and_a_source_is_closed_when_the_reader_leaves() -> None:
    closed, sent, leave = asyncio.Event(), [], asyncio.Event()

    async def silent() -> AsyncGenerator[StreamItem, None]:
        try:
            while True:
                yield None
                await asyncio.sleep(0)
        finally:
            closed.set()

    async def receive() -> dict[str, Any]:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 4:
            leave.set()

    async with asyncio.timeout(30):
        await EventStream(silent(), allowed, nullcontext(), keep_alive_seconds=0.002)({"type": "http"}, receive, send)
    assert closed.is_set()
    assert sent[1]["body"] == b": still here\n\n"


async def test_a_source_that_breaks_is_not_taken_for_one_that_ended() -> None:
    async def broken() -> AsyncGenerator[StreamItem, None]:
        yield None
        raise RuntimeError("broken")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None: ...

    with pytest.raises(RuntimeError, match="broken"):
        await EventStream(broken(), allowed, nullcontext())({"type": "http"}, receive, send)


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_looking")
async def test_a_silent_stream_ends_soon_after_its_key(api: Api, ada: httpx2.AsyncClient, address: str) -> None:
    """Also where nobody hears that the key was revoked."""
    view = await submit(ada)
    key = {"Authorization": ada.headers["Authorization"]}
    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(base_url=address) as client,
        client.stream("GET", f"/v1/jobs/{view['job_id']}/events", headers=key, timeout=30) as answer,
    ):
        lines = answer.aiter_lines()
        while await anext(lines) != "event: event":
            pass
        async with api.world.stores.pool.acquire() as connection:
            await connection.execute("UPDATE api_keys SET is_active = false")
        revoked = time.monotonic()
        async for _ in lines:
            pass
        assert time.monotonic() - revoked < 20, "it does not wait for anything that happens"


async def test_whoever_may_read_no_more_and_reads_nothing_is_not_waited_for() -> None:
    may_read, entered, left = True, [], asyncio.Event()

    async def is_allowed() -> bool:
        return may_read

    @contextmanager
    def place() -> Iterator[None]:
        entered.append(1)
        yield
        left.set()

    async def silent() -> AsyncGenerator[StreamItem, None]:
        await asyncio.Event().wait()
        yield None

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    streaming = asyncio.create_task(EventStream(silent(), is_allowed, place())({"type": "http"}, receive, send))
    await eventually_async(lambda: bool(entered))
    may_read = False
    await asyncio.wait_for(streaming, 20)
    assert left.is_set()


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_looking")
async def test_streams_end_in_order_as_soon_as_the_server_is_told_to_stop(
    api: Api, ada: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    view = await submit(ada)
    config = uvicorn.Config(
        api.app, port=free_port(), lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=30
    )
    server = GracefulServer(config, on_stop=api.app.state.stopping.set)
    serving = asyncio.create_task(server.serve())
    await eventually_async(lambda: server.started)
    async with AsyncExitStack() as opened:
        address = f"http://127.0.0.1:{config.port}"
        streams = [await opened.enter_async_context(follow(address, ada, view)) for _ in range(3)]
        for stream in streams:
            assert (await anext(stream)).event == "job"
        told = time.monotonic()
        server.handle_exit(signal.SIGTERM, None)
        for stream in streams:
            assert [sent.event async for sent in stream] == ["event"], "the response is complete"
        await serving
        assert time.monotonic() - told < 20, "nobody waits until they are cancelled"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.slow
async def test_nobody_holds_all_connections_with_streams(api: Api, address: str) -> None:
    state = api.app.state
    places = {"streams_of_user": ConcurrencyLimits(2), "streams_from_address": ConcurrencyLimits(3)}
    state.guard = replace(state.guard, addresses=ClientIpResolver(["127.0.0.1"]), **places)
    job = await submit(await api.as_user("ada"))
    keys = {name: f"Bearer {await api.secret(name, Role.OPERATOR)}" for name in ("eve", "olga")}

    async with httpx2.AsyncClient(base_url=address, timeout=30) as client, AsyncExitStack() as streams:

        async def follow(who: str, where: str) -> httpx2.Response:
            headers = {"Authorization": keys[who], "X-Forwarded-For": where}
            path = f"/v1/jobs/{job['job_id']}/events"
            answer = await streams.enter_async_context(client.stream("GET", path, headers=headers))
            if answer.status_code != 200:
                await answer.aread()
            return answer

        for where in ("192.0.2.1", "192.0.2.2"):
            assert (await follow("eve", where)).status_code == 200
        assert "you have 2 event streams" in refused(await follow("eve", "192.0.2.3"), 429, "limit_reached")
        assert (await follow("olga", "192.0.2.2")).status_code == 200
        keys["olaf"] = f"Bearer {await api.secret('olaf', Role.OPERATOR)}"
        assert (await follow("olaf", "192.0.2.2")).status_code == 200
        assert "from your address" in refused(await follow("olga", "192.0.2.2"), 429, "limit_reached")
        await streams.aclose()
        await eventually_async(lambda: not any(place._held for place in places.values()))
        assert (await follow("eve", "192.0.2.2")).status_code == 200
