"""How busy a reservation's GPUs are: from exporters that speak DCGM's text, over real HTTP, to `gpu-dev status`."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import pytest

from gpudev.adapters.dcgm_exporter import DcgmUsage, parse_exporter
from gpudev.adapters.local.machine import gpu_use, nvml
from gpudev.cli import formatting
from gpudev.domain.cluster import NodeShare
from gpudev.domain.errors import Invalid
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.settings import load_settings
from gpudev.wire.reservations import GpuUseView, JobView
from gpudev.workflows.reservation_views import ReservationViews
from support.clock import ManualClock
from support.planner.reservation_factory import active

# Lines as an exporter writes them.
# ruff: noqa: E501
TEXT = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",Hostname="node-1",container="dev",namespace="gpu-dev",pod="gpu-dev-3f2a9c01"} 1980
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="node-1",container="dev",namespace="gpu-dev",pod="gpu-dev-3f2a9c01"} 87
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="node-1",container="dev",namespace="gpu-dev",pod="gpu-dev-3f2a9c01"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",Hostname="node-1",container="x",namespace="others",pod="gpu-dev-3f2a9c01"} 55
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-d",Hostname="node-1",container="",namespace="",pod=""} 3
# HELP DCGM_FI_DEV_FB_FREE Framebuffer memory free (in MiB).
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",Hostname="node-1",container="dev",namespace="gpu-dev",pod="gpu-dev-3f2a9c01"} 18432
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="node-1",container="dev",namespace="gpu-dev",pod="gpu-dev-3f2a9c01"} 63488
"""


class Exporter:
    """An HTTP server that tells what it is told to."""

    def __init__(self) -> None:
        self.text, self.status, self.asked = TEXT, 200, 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.asked += 1
                self.send_response(exporter.status)
                self.end_headers()
                self.wfile.write(exporter.text.encode())

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


@pytest.fixture
def held() -> Reservation:
    """Two GPUs of a node, whose pod the exporter names."""
    name = ReservationId(UUID("3f2a9c01-0000-4000-8000-000000000000"))
    return active(reservation_id=name, shares=(NodeShare(0, "node-1", 2, (0, 1)),))


def test_only_gpus_of_our_own_pods_are_read(clock: ManualClock) -> None:
    found = parse_exporter(TEXT, "gpu-dev", clock.now())
    assert list(found) == ["gpu-dev-3f2a9c01"]
    first, second = found["gpu-dev-3f2a9c01"]
    assert (first.gpu, first.node, first.busy) == ("0", "node-1", 0.87)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (62 * 2**30, 80 * 2**30)
    assert (second.gpu, second.busy, second.memory_used_bytes) == ("1", 0.0, None)


def test_labels_of_older_and_of_relayed_exporters_are_understood(clock: ManualClock) -> None:
    older = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",pod_name="gpu-dev-1",pod_namespace="gpu-dev"} 10\n'
    labels = 'gpu="0",pod="exporter-x",namespace="ops",exported_pod="gpu-dev-2",exported_namespace="gpu-dev"'
    relayed = f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 20\n"
    found = parse_exporter(older + relayed, "gpu-dev", clock.now())
    assert {pod: uses[0].busy for pod, uses in found.items()} == {"gpu-dev-1": 0.1, "gpu-dev-2": 0.2}


def test_a_part_of_a_gpu_is_told_by_its_own_counters(clock: ManualClock) -> None:
    line = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",GPU_I_ID="3",pod="gpu-dev-1",namespace="gpu-dev"} 0.5\n'
    (use,) = parse_exporter(line, "gpu-dev", clock.now())["gpu-dev-1"]
    assert (use.gpu, use.busy) == ("0/3", 0.5)


def test_what_is_no_such_text_is_refused(clock: ManualClock) -> None:
    with pytest.raises(Invalid):
        parse_exporter("<html>{nothing} here</html>", "gpu-dev", clock.now())


async def test_exporters_are_asked_now_and_then_however_often_people_look(
    exporter: Exporter, held: Reservation, clock: ManualClock
) -> None:
    usage = DcgmUsage(exporter.url, "gpu-dev", clock)
    try:
        for _ in range(20):
            assert [use.busy for use in await usage.find_usage(held)] == [0.87, 0.0]
        assert exporter.asked == 1
        exporter.text = TEXT.replace("} 87", "} 12")
        clock.move(seconds=11)
        assert [use.busy for use in await usage.find_usage(held)] == [0.12, 0.0]
    finally:
        await usage.close()


async def test_an_exporter_that_fails_is_believed_for_a_while_and_then_not(
    exporter: Exporter, held: Reservation, clock: ManualClock
) -> None:
    usage = DcgmUsage(exporter.url, "gpu-dev", clock)
    try:
        assert await usage.find_usage(held)
        exporter.status = 500
        clock.move(seconds=60)
        assert [use.busy for use in await usage.find_usage(held)] == [0.87, 0.0]
        clock.move(seconds=70)
        assert not await usage.find_usage(held)
        exporter.status, exporter.text = 200, "no { metrics"
        clock.move(seconds=11)
        assert not await usage.find_usage(held)
    finally:
        await usage.close()


async def test_nobody_waits_for_exporters_that_are_not_there(held: Reservation, clock: ManualClock) -> None:
    usage = DcgmUsage("http://exporters.invalid:9400/metrics", "gpu-dev", clock)
    try:
        async with asyncio.timeout(10):
            assert not await usage.find_usage(held)
    finally:
        await usage.close()


async def test_a_gangs_pods_are_all_told(exporter: Exporter, held: Reservation, clock: ManualClock) -> None:
    second = TEXT.replace("gpu-dev-3f2a9c01", "gpu-dev-3f2a9c01-1").replace("node-1", "node-2")
    exporter.text += second.replace("} 87", "} 9")
    gang = replace(held, node_count=2, shares=(NodeShare(0, "node-1", 2), NodeShare(1, "node-2", 2)))
    usage = DcgmUsage(exporter.url, "gpu-dev", clock)
    try:
        assert [(use.node, use.busy) for use in await usage.find_usage(gang)] == [
            ("node-1", 0.87),
            ("node-1", 0.0),
            ("node-2", 0.09),
            ("node-2", 0.0),
        ]
    finally:
        await usage.close()


async def test_on_one_machine_the_driver_tells_of_the_gpus_that_are_held(
    held: Reservation, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_gpus = [nvml.GpuMeasurement(index, index / 10, index * 2**30, 80 * 2**30) for index in range(4)]
    monkeypatch.setattr(gpu_use, "measure_gpus", lambda: all_gpus)
    usage = gpu_use.NvmlUsage(clock)
    holds = replace(held, shares=(NodeShare(0, "this-machine", 2, (1, 3)),))
    assert [(use.gpu, use.busy) for use in await usage.find_usage(holds)] == [("1", 0.1), ("3", 0.3)]
    await usage.close()


def test_without_a_driver_nothing_is_measured() -> None:
    assert nvml.measure_gpus() == [] or all(0 <= one.busy <= 1 for one in nvml.measure_gpus())


async def test_a_reservation_is_shown_with_its_gpus_use_while_it_is_active(
    exporter: Exporter, held: Reservation, clock: ManualClock
) -> None:
    usage = DcgmUsage(exporter.url, "gpu-dev", clock)
    try:
        viewing = ReservationViews(None, clock, load_settings({}).timing, usage=usage)  # type: ignore[arg-type]  # nobody waits
        view = await viewing.view_with_usage(held)
        assert formatting.gpu_use(view) == "GPU 0 87 %, 62 of 80 GB; GPU 1 0 %"
        ended = await viewing.view_with_usage(replace(held, status=Status.EXPIRED, shares=()))
        assert ended.gpus is None and formatting.gpu_use(ended) == ""
    finally:
        await usage.close()


def test_gpus_of_several_nodes_are_told_with_their_nodes(clock: ManualClock) -> None:
    def use(node: str) -> GpuUseView:
        return GpuUseView(
            gpu="0", node=node, at=clock.now(), busy=None, memory_used_bytes=2**30, memory_total_bytes=None
        )

    view = JobView.__new__(JobView)
    view.gpus = [use("a"), use("b")]
    assert formatting.gpu_use(view) == "a GPU 0 ?, 1 GB; b GPU 0 ?, 1 GB"


@pytest.mark.parametrize("text", ["exporter:9400", "https://x/metrics", "http://user@x/metrics", "http://x"])
def test_an_address_that_is_none_is_refused_by_the_settings_name(text: str) -> None:
    with pytest.raises(ValueError, match="GPU_DEV_DCGM_URL"):
        load_settings({"GPU_DEV_DCGM_URL": text})
