"""The door for those who watch over a service: metrics and health, as Prometheus and a kubelet ask for them."""

import socket
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from gpudev.api.http.middleware import RequestMeter
from gpudev.bootstrap.observability import HealthAndMetrics, serve_metrics
from gpudev.domain.addresses import ListenAddress, parse_bind_address
from gpudev.domain.errors import Invalid, Unavailable
from gpudev.embedded.system import PROCESSOR, PROXY, startup_parts
from gpudev.metrics.instruments import request_seconds, requests
from gpudev.metrics.loop_watchdog import LoopWatchdog
from gpudev.settings import Settings, load_settings
from support.polling import until_it_succeeds
from support.ports import free_port


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


async def ask(address: str, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await until_it_succeeds(lambda: client.get(f"http://{address}{path}"), httpx2.ConnectError)


async def test_metrics_are_told_where_the_setting_says_and_nowhere_else() -> None:
    address = free_address()
    async with serve_metrics(Settings(metrics_address=address), HealthAndMetrics()):
        answer = await ask(address, "/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert "process_cpu_seconds_total" in answer.text and "gpudev_http_requests_in_progress" in answer.text
        assert (await ask(address, "/v1/jobs")).status_code == 404
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 1)


async def test_a_service_that_is_still_being_put_together_is_alive_and_not_ready() -> None:
    address, eyes = free_address(), HealthAndMetrics()
    async with serve_metrics(Settings(metrics_address=address), eyes):
        assert (await ask(address, "/health/live")).status_code == 200
        assert (await ask(address, "/health/ready")).status_code == 503

        async def fine() -> None: ...

        eyes.check_ready = fine
        assert (await ask(address, "/health/ready")).status_code == 200

        async def away() -> None:
            raise Unavailable("the database does not answer: secret details")

        eyes.check_ready = away
        answer = await ask(address, "/health/ready")
        assert (answer.status_code, answer.text) == (503, "the database does not answer\n")


async def test_a_loop_that_hangs_makes_its_process_not_alive_by_name() -> None:
    now = 0.0
    pulse = LoopWatchdog(timedelta(seconds=120), lambda: now)
    eyes, request = HealthAndMetrics(watchdog=pulse), None
    pulse.beat("planning")
    pulse.beat("lease")
    now = 100.0
    pulse.beat("lease")
    assert (await eyes.live(request)).status_code == 200  # type: ignore[arg-type]
    now = 130.0
    answer = await eyes.live(request)  # type: ignore[arg-type]
    assert answer.status_code == 503
    assert bytes(answer.body).decode() == "planning has been stuck for 130 s\n"
    pulse.forget("planning")
    assert (await eyes.live(request)).status_code == 200  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:9090", ListenAddress("0.0.0.0", 9090)),
        ("[::]:9090", ListenAddress("::", 9090)),
        ("localhost:1", ListenAddress("localhost", 1)),
    ],
)
def test_metrics_may_be_told_on_every_address_of_a_machine(text: str, address: ListenAddress) -> None:
    assert parse_bind_address(text) == address
    assert load_settings({"GPU_DEV_METRICS_ADDRESS": text}).metrics_address == text


@pytest.mark.parametrize("text", ["9090", "localhost", "localhost:", "localhost:70000", ":9090", "::1:9090", "a b:1"])
def test_what_is_no_address_with_a_port_is_refused_by_the_settings_name(text: str) -> None:
    with pytest.raises(Invalid):
        parse_bind_address(text)
    with pytest.raises(ValueError, match="GPU_DEV_METRICS_ADDRESS"):
        load_settings({"GPU_DEV_METRICS_ADDRESS": text})


def test_on_one_machine_processor_and_proxy_tell_their_metrics_on_the_next_ports(settings: Settings) -> None:
    parts = startup_parts(
        replace(settings, metrics_address="127.0.0.1:9090"), {"GPU_DEV_METRICS_ADDRESS": "127.0.0.1:9090"}
    )
    told = {part.spec.name: part.spec.environment.get("GPU_DEV_METRICS_ADDRESS") for part in parts}
    assert told[PROCESSOR] == "127.0.0.1:9091"
    assert told[PROXY] == "127.0.0.1:9092"
    assert told["api"] == "127.0.0.1:9090"


def test_where_metrics_are_told_is_among_the_addresses_no_dev_server_is_led_to() -> None:
    assert ("0.0.0.0", 9090) in Settings(cluster="kubernetes", metrics_address="0.0.0.0:9090").own_addresses
    one_machine = Settings(metrics_address="127.0.0.1:9090")
    assert {("127.0.0.1", 9090), ("127.0.0.1", 9091), ("127.0.0.1", 9092)} <= one_machine.own_addresses


def test_requests_are_counted_by_the_route_never_by_the_path() -> None:
    meter = RequestMeter()
    route = SimpleNamespace(path="/v1/jobs/{job_id}")
    for job in range(50):
        meter.begin_request()
        meter.end_request({"method": "GET", "path": f"/v1/jobs/{job}", "route": route}, 200, 0.004)
    scope: dict[str, Any] = {"method": "BREW", "path": "/coffee/7"}
    meter.begin_request()
    meter.end_request(scope, 404, 0.001)
    assert requests.labels("GET", "/v1/jobs/{job_id}", "200")._value.get() >= 50
    assert requests.labels("other", "unmatched", "404")._value.get() >= 1
    assert not [labels for labels in requests._metrics if any(part.startswith("/v1/jobs/4") for part in labels)]
    assert ("GET", "/v1/jobs/{job_id}") in request_seconds._metrics
