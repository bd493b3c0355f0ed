"""Traces: from the client's command over the API to the dev server, as a collector would get them."""

import asyncio
import base64
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from gpudev.adapters.otlp import OtlpTracer
from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.adapters.postgres.database.roles import API, PROCESSOR
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.app import create_app
from gpudev.bootstrap.observability import open_tracer
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.errors import ClusterError, Invalid
from gpudev.domain.trace_context import new_trace_id, trace_headers
from gpudev.domain.tracing import Span, SpanRef, parse_traceparent
from gpudev.ports.tracing import NO_TRACER
from gpudev.sdk.client_session import ClientSession
from gpudev.settings import Settings, load_settings
from support.api.harness import Api, PublishedKeys, api_services, submit
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.polling import eventually_async
from support.processor_world import World

Sent = dict[str, Any]
SPAN = Span("x", SpanRef("1" * 32, "2" * 16), 1, 2, attributes={"n": 3})


class Collector:
    """Takes OTLP over HTTP, as protobuf. What it took is kept in the form of OTLP's JSON, with ids as hex digits."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.status = 200
        self.rejected = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert collector.may_answer.wait(60)
                if collector.status == 200:
                    assert self.headers["Content-Type"] == "application/x-protobuf"
                    collector.batches.append(MessageToDict(ExportTraceServiceRequest.FromString(body)))
                else:
                    collector.rejected += 1
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def spans(self, name: str | None = None) -> list[Sent]:
        every = [
            _with_hex_ids(span)
            for batch in self.batches
            for resource in batch["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        return [span for span in every if name in (None, span["name"])]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


@pytest.fixture
async def tracer(collector: Collector) -> AsyncIterator[OtlpTracer]:
    """Sends when it is flushed, at the latest."""
    tracer = OtlpTracer(collector.url, "gpu-dev-test")
    yield tracer
    await tracer.close()


@pytest.fixture
async def api(
    stores: Stores, stores_of: Callable[[str], Stores], clock: ManualClock, settings: Settings, tracer: OtlpTracer
) -> AsyncIterator[Api]:
    theirs = stores_of(PROCESSOR)
    cluster = PaperCluster([Node("node-1", "h100", 8)], clock)
    processor = make_processor(theirs, cluster, clock, settings.timing, tracer=tracer)
    world = World(replace(stores, leases=theirs.leases), cluster, clock, processor, settings)
    await world.turn(1)
    own, published = stores_of(API), PublishedKeys()
    changes = PostgresReservationChanges(own.pool.database)
    services = replace(api_services(own, changes, published, clock, settings), tracer=tracer)
    api = Api(services, world, published, create_app(services))
    yield api
    for client in api.clients:
        await client.aclose()
    await processor.effects.cancel()


async def test_a_command_leads_over_the_api_to_the_dev_server(
    api: Api, collector: Collector, tracer: OtlpTracer
) -> None:
    ada = await api.as_user("ada")
    command = new_trace_id()
    ada.headers.update(trace_headers(command))
    job = (await submit(ada, gpu_count=8))["job_id"]
    api.world.clock.move(seconds=30)
    await api.world.turn()
    await asyncio.to_thread(tracer.flush)
    (asked,) = collector.spans("POST /v1/jobs/submit")
    assert (asked["traceId"], asked["kind"]) == (command, "SPAN_KIND_SERVER")
    assert asked["parentSpanId"] == ada.headers["traceparent"].split("-")[2]
    (root,) = collector.spans("reservation")
    assert root["traceId"] == job.replace("-", "")
    assert [_ref(link) for link in asked["links"]] == [_ref(root)]
    parts = {span["name"]: span for span in collector.spans() if span.get("parentSpanId") == root["spanId"]}
    assert {"submit", "wait", "start", "launch"} <= parts.keys()
    assert {span["traceId"] for span in parts.values()} == {root["traceId"]}
    assert [_ref(link) for link in parts["submit"]["links"]] == [_ref(asked)]
    assert _seconds(parts["wait"]) == 30
    assert int(parts["wait"]["endTimeUnixNano"]) == int(parts["start"]["startTimeUnixNano"])
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in collector.spans())


async def test_what_fails_is_marked_so(api: Api, collector: Collector, tracer: OtlpTracer) -> None:
    ada = await api.as_user("ada")
    api.world.cluster.refuse_launch = ClusterError("no such image")
    await submit(ada)
    for _ in range(4):
        await api.world.turn()
        api.world.clock.move(minutes=1)
    await asyncio.to_thread(tracer.flush)
    (root,) = collector.spans("reservation")
    assert root["status"] == {"code": "STATUS_CODE_ERROR"}


async def test_a_caller_who_is_not_recorded_is_not_and_health_never(
    api: Api, collector: Collector, tracer: OtlpTracer
) -> None:
    ada = await api.as_user("ada")
    await ada.get("/v1/jobs", headers={"traceparent": f"00-{new_trace_id()}-{'1' * 16}-00"})
    await ada.get("/health/live")
    await asyncio.to_thread(tracer.flush)
    assert not collector.spans()
    await ada.get("/v1/jobs", headers={"traceparent": "nonsense"})
    await asyncio.to_thread(tracer.flush)
    (span,) = collector.spans()
    assert "parentSpanId" not in span and span["name"] == "GET /v1/jobs"


async def test_spans_wait_for_a_collector_that_is_away(api: Api, collector: Collector, tracer: OtlpTracer) -> None:
    ada = await api.as_user("ada")
    collector.status = 503
    await ada.get("/v1/jobs")
    sending = asyncio.create_task(asyncio.to_thread(tracer.flush))
    await eventually_async(lambda: collector.rejected > 0)
    await ada.get("/v1/jobs")
    assert not collector.spans() and not sending.done(), "it is still tried, and nobody waits for that"
    collector.status = 200
    await sending
    await asyncio.to_thread(tracer.flush)
    assert len(collector.spans()) == 2


async def test_an_outage_is_logged_once_with_its_reason(collector: Collector, tracer: OtlpTracer) -> None:
    collector.status = 404
    with capture_logs() as lines:
        for _ in range(3):
            tracer.record_span(SPAN)
            await asyncio.to_thread(tracer.flush)
    assert [(line["event"], line["log_level"]) for line in lines] == [("traces.unavailable", "warning")]
    assert "404" in lines[0]["error"]
    assert collector.rejected == 3


async def test_a_collector_that_hangs_does_not_hold_up_the_end(collector: Collector) -> None:
    collector.may_answer.clear()
    async with open_tracer(Settings(otlp_url=collector.url), "gpu-dev-api") as tracer:
        tracer.record_span(SPAN)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    collector.may_answer.set()


async def test_without_the_extra_the_error_names_it(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gpudev.adapters.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    advice = r'GPU_DEV_OTLP_URL requires the tracing extra: pip install "gpu-dev\[server,tracing\]"'
    with pytest.raises(Invalid, match=advice):
        async with open_tracer(Settings(otlp_url=collector.url), "gpu-dev-api"):
            pass


def test_whoever_sends_no_traces_does_not_load_opentelemetrys_sdk() -> None:
    script = """
import sys, gpudev.cli.main, gpudev.main, gpudev.sdk
import gpudev.bootstrap.observability, gpudev.bootstrap.processor, gpudev.bootstrap.api
sys.exit(", ".join(name for name in sys.modules if name.startswith("opentelemetry.sdk")) or None)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


async def test_without_a_collector_nothing_is_made() -> None:
    async with open_tracer(Settings(), "x") as tracer:
        assert tracer is NO_TRACER and not tracer.is_enabled


async def test_with_a_collector_what_is_left_is_sent_at_the_end(collector: Collector) -> None:
    async with open_tracer(Settings(otlp_url=collector.url), "gpu-dev-api") as tracer:
        tracer.record_span(SPAN)
    (span,) = collector.spans("x")
    assert _ref(span) == SPAN.ref
    assert span["attributes"] == [{"key": "n", "value": {"intValue": "3"}}]
    resource = collector.batches[0]["resourceSpans"][0]["resource"]
    assert {"key": "service.name", "value": {"stringValue": "gpu-dev-api"}} in resource["attributes"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "0" * 16 + "-01",
        "01-x-y-00",
        "a" * 10_000,
    ],
)
def test_a_parent_that_is_none_is_nobodys(text: str) -> None:
    assert parse_traceparent(text) is None


def test_the_clients_headers_are_what_the_api_understands() -> None:
    trace = new_trace_id()
    headers = trace_headers(trace)
    parsed = parse_traceparent(headers["traceparent"])
    assert parsed is not None
    ref, is_recorded = parsed
    assert (ref.trace_id, is_recorded) == (trace, True)
    assert headers["X-Request-ID"] == f"{trace}.{ref.span_id}"


@pytest.mark.parametrize("text", ["collector:4318", "ftp://x/v1/traces", "http://key@x/v1/traces", "http://x"])
def test_an_address_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="GPU_DEV_OTLP_URL"):
        load_settings({"GPU_DEV_OTLP_URL": text})


def _with_hex_ids(span: Sent) -> Sent:
    """OTLP's JSON has ids as hex digits; protobuf's own JSON has all bytes as base64."""
    ids = {name: base64.b64decode(span[name]).hex() for name in ("traceId", "spanId", "parentSpanId") if name in span}
    return {**span, **ids, "links": [_with_hex_ids(link) for link in span.get("links", [])]}


def _ref(span: Sent) -> SpanRef:
    return SpanRef(span["traceId"], span["spanId"])


def _seconds(span: Sent) -> float:
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


def test_all_requests_of_one_command_are_one_trace() -> None:
    command, another = ClientSession("http://127.0.0.1:1"), ClientSession("http://127.0.0.1:1")
    first, second = command.new_transport(), command.new_transport()
    assert first._trace_id == second._trace_id != another.new_transport()._trace_id
