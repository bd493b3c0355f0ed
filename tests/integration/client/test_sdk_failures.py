"""What programs are told when the API, the network or the person's machine does not play along."""

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpudev import (
    AsyncGpuDev,
    GpuDev,
    LocalError,
    Rejected,
    ReservationEnded,
    Unauthenticated,
    Unreachable,
    UsageError,
)
from gpudev.sdk import user_files
from gpudev.sdk.resources.dev_servers import ReservationContext
from gpudev.sdk.user_files import Credential
from support.client.fake_api import KEY, FakeApi, Trouble

KEYS = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9zYkq7cbRyXc1fC2Fz0pWmYk3n0k1n5vYt3m1kQX9a ada"]


def test_a_reservation_whose_answer_is_cut_off_is_made_once(asking: GpuDev, fake: FakeApi) -> None:
    fake.fail_next("/submit", Trouble(cut_after=True))
    job = asking.jobs.submit(ssh_public_keys=KEYS)
    assert list(fake.jobs) == [job.reservation_id]


def test_a_wish_that_is_misspelt_is_not_left_out_silently(asking: GpuDev, fake: FakeApi, tmp_path: Path) -> None:
    awaited = AsyncGpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)})
    for ask in (asking.reserve, asking.jobs.submit, awaited.reserve):
        with pytest.raises(TypeError, match=r"'hour'.*'hours'"):
            ask(ssh_public_keys=KEYS, hour=1)  # type: ignore[call-arg]
    assert fake.jobs == {}


def test_a_name_that_is_none_is_no_other_question(asking: GpuDev, fake: FakeApi) -> None:
    for ask in (asking.jobs.get, asking.jobs.cancel, asking.disks.get, asking.users.list, asking.jupyter.get):
        for name in ("", ".", ".."):
            with pytest.raises(UsageError, match="invalid "):
                ask(name)
    assert fake.asked == []


def test_an_address_that_is_none_is_called_what_programs_call_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^invalid api_url"):
        GpuDev("nonsense", env={"HOME": str(tmp_path)})


def test_one_client_serves_many_threads(asking: GpuDev, fake: FakeApi) -> None:
    jobs = [fake.add(status="active").reservation_id for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        heard = list(threads.map(lambda own: {asking.jobs.get(own).reservation_id for _ in range(10)}, jobs))
    assert heard == [{own} for own in jobs], "everybody hears the answer to their own question"


def test_one_that_ends_while_it_is_waited_for_is_no_server(asking: GpuDev, fake: FakeApi) -> None:
    def fail(api: FakeApi, job: object) -> None:
        api.change(next(iter(api.jobs)), status="failed", failure_reason="no such image")

    fake.on_submit = fail
    with pytest.raises(ReservationEnded, match="no such image"):
        asking.reserve(ssh_public_keys=KEYS).__enter__()
    assert fake.requests("POST", "/cancel") == []


def test_one_that_has_ended_by_itself_is_released_without_a_word(asking: GpuDev, fake: FakeApi) -> None:
    fake.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    with asking.reserve(ssh_public_keys=KEYS) as server:
        fake.change(server.id, status="expired")


def test_a_release_that_fails_is_told_beside_the_reason(asking: GpuDev, fake: FakeApi) -> None:
    fake.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    html = Trouble(answer=(500, "text/html", b"oops"))
    fake.fail_next("/cancel", *[html] * 8)
    with pytest.raises(ZeroDivisionError) as raised, asking.reserve(ssh_public_keys=KEYS):
        _ = 1 / 0
    assert "could not be released" in raised.value.__notes__[0]
    with pytest.raises(Unreachable), asking.reserve(ssh_public_keys=KEYS):
        pass


def test_interrupted_while_asking_it_finds_out_what_was_made_and_releases_it(
    asking: GpuDev, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = asking._driver._transport
    ask = transport.send
    asked: list[str] = []

    def interrupted(request, *more):  # type: ignore[no-untyped-def]
        answer = ask(request, *more)
        asked.append(request.path)
        if asked == ["/v1/jobs/submit"]:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(transport, "send", interrupted)
    stay: ReservationContext = asking.reserve(ssh_public_keys=KEYS)
    with pytest.raises(KeyboardInterrupt):
        stay.__enter__()
    assert [job.status for job in fake.jobs.values()] == ["cancelled"]


def test_interrupted_while_asking_and_then_not_heard_it_still_fails_with_the_interruption(
    asking: GpuDev, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[BaseException] = [KeyboardInterrupt(), Unreachable("nobody answers", sent=True, final=True)]

    def fail(*_: object) -> None:
        raise reasons.pop(0)

    monkeypatch.setattr(asking._driver._transport, "send", fail)
    with pytest.raises(KeyboardInterrupt) as raised:
        asking.reserve(ssh_public_keys=KEYS).__enter__()
    assert raised.value.__notes__ == ["A reservation may have been created: nobody answers"]


async def test_a_task_that_is_cancelled_again_and_again_releases_what_it_asked_for(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, client = asyncio.get_running_loop(), AsyncGpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)})
    transport = client._driver._transport
    ask = transport.send

    def cancelled_each_time(request, *more):  # type: ignore[no-untyped-def]
        is_cancelled = threading.Event()
        loop.call_soon_threadsafe(task.cancel)
        loop.call_soon_threadsafe(is_cancelled.set)
        assert is_cancelled.wait(30)
        return ask(request, *more)

    monkeypatch.setattr(transport, "send", cancelled_each_time)
    task = asyncio.create_task(client.reserve(ssh_public_keys=KEYS).__aenter__())
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [job.status for job in fake.jobs.values()] == ["cancelled"]
    client.close()


async def test_whoever_still_listens_is_told_when_the_client_is_closed(fake: FakeApi, tmp_path: Path) -> None:
    job = fake.add(status="queued")
    client = AsyncGpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)})
    seen = asyncio.Event()
    waiting = asyncio.create_task(client.jobs.wait(job.reservation_id, on_change=lambda _job: seen.set()))
    async with asyncio.timeout(30):
        await seen.wait()
        await asyncio.to_thread(fake.wait_for, lambda: bool(fake.told), "it listens")
        client.close()
        with pytest.raises(UsageError, match="is closed"):
            await waiting


def test_a_client_for_a_block_asks_nothing_after_it_but_still_releases(fake: FakeApi, tmp_path: Path) -> None:
    fake.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    with GpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)}) as client:
        assert client.jobs.list() == []
        stay = client.reserve(ssh_public_keys=KEYS)
        stay.__enter__()
    for ask in (client.jobs.list, lambda: list(client.jobs.follow("3f2a9c1e")), client.reserve().__enter__):
        with pytest.raises(UsageError, match="this client is closed"):
            ask()
    stay.__exit__(None, None, None)
    assert [job.status for job in fake.jobs.values()] == ["cancelled"]


@pytest.mark.parametrize(("command", "kind"), [(["echo", 5], "int"), (b"echo", "bytes"), ([Path("x")], "PosixPath")])
def test_a_command_that_is_no_text_is_refused_in_words(fake: FakeApi, tmp_path: Path, command: Any, kind: str) -> None:
    client = GpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)})
    server = client.server(fake.add(status="active").reservation_id)
    for ask in (server.run, server.start):
        with pytest.raises(TypeError, match=f"must be text, not {kind}"):
            ask(command)


def test_one_status_may_be_asked_for_by_itself(fake: FakeApi, tmp_path: Path) -> None:
    client = GpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)})
    fake.add(status="queued")
    job = fake.add(status="active")
    assert [one.reservation_id for one in client.jobs.list(status="active")] == [job.reservation_id]


async def test_whoever_had_not_got_a_turn_yet_is_told_too_and_not_taken_for_cancelled(
    fake: FakeApi, tmp_path: Path
) -> None:
    job = fake.add(status="queued")
    client = AsyncGpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)})
    threads, go_on = client._driver._threads, threading.Event()
    for _ in range(threads._max_workers):
        threads.submit(go_on.wait, 30)
    try:
        asking = asyncio.create_task(client.jobs.get(job.reservation_id))
        await asyncio.sleep(0)  # from here on it waits for a thread
        client.close()
        with pytest.raises(UsageError, match="is closed"):
            await asking
    finally:
        go_on.set()


async def test_a_stream_that_is_left_early_is_hung_up(fake: FakeApi, tmp_path: Path) -> None:
    job = fake.add(status="queued")
    async with AsyncGpuDev(fake.url, api_key=KEY, env={"HOME": str(tmp_path)}) as client:
        events = client.jobs.follow(job.reservation_id)
        assert (await anext(events)).kind == "submitted"
        await events.aclose()
        assert client._driver._streams == set()


def test_an_api_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable) as raised:
        GpuDev("http://127.0.0.1:9", api_key="k", env={"HOME": str(tmp_path)}).jobs.list()
    assert raised.value.sent is False


def test_without_an_address_or_a_key_the_next_step_is_named(tmp_path: Path, fake: FakeApi) -> None:
    with pytest.raises(LocalError, match="no API address") as nowhere:
        GpuDev(env={"HOME": str(tmp_path)})
    assert "gpu-dev up" in nowhere.value.next_step
    with pytest.raises(Unauthenticated) as nobody:
        GpuDev(fake.url, env={"HOME": str(tmp_path)}).jobs.list()
    assert nobody.value.next_step == "Run `gpu-dev login`"
    with pytest.raises(Rejected, match="no public key"):
        GpuDev("http://gpu.example.com", api_key="k", env={"HOME": str(tmp_path)}).jobs.submit()


def test_the_key_that_was_stored_is_found_and_one_that_ended_is_got_anew(tmp_path: Path, fake: FakeApi) -> None:
    """Nobody can log in by that way here, which is what is told."""
    path = tmp_path / ".gpu-dev" / "credentials"
    user_files.store_credential(path, fake.url, Credential(KEY, "ada"))
    client = GpuDev(fake.url, env={"HOME": str(tmp_path)})
    assert client.jobs.list() == []
    user_files.store_credential(path, fake.url, Credential("ended", "ada", None, {"method": "aws"}))
    with pytest.raises(Unauthenticated, match="has expired"):
        GpuDev(fake.url, env={"HOME": str(tmp_path)}).jobs.list()


@pytest.mark.slow
def test_importing_the_package_loads_nothing_and_the_client_nothing_but_the_standard_library() -> None:
    script = (
        "import sys, json; before = set(sys.modules); import gpudev; light = set(sys.modules) - before;"
        "from gpudev import GpuDev, AsyncGpuDev, Unreachable; import gpudev.sdk.client as home;"
        "assert GpuDev is home.GpuDev; print(json.dumps([sorted(light), sorted(set(sys.modules) - before)]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    light, loaded = json.loads(done.stdout)
    assert not [name for name in light if name.startswith("gpudev.")]
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"gpudev"}
    assert not {name for name in foreign if not name.startswith("_")}
    with pytest.raises(ImportError):
        from gpudev import NoSuchThing  # type: ignore[attr-defined]  # noqa: F401
