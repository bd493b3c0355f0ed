"""The OpenAPI document says what the API does: read by eye for its form, by schemathesis against the real thing."""

import asyncio
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from schemathesis import Case, GenerationMode, checks

from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.adapters.postgres.database.roles import API
from gpudev.adapters.postgres.stores import open_stores
from gpudev.api.app import create_app
from gpudev.api.permissions import ENDPOINT_RULES
from gpudev.domain.access.users import Role
from gpudev.domain.cluster import Node
from gpudev.domain.queue import PLANNING_LEASE
from gpudev.http_edge.rate_limits import Rate, RequestLimits
from gpudev.ports.clock import SystemClock
from gpudev.settings import Settings
from support.api.harness import Api, PublishedKeys, api_services
from support.api.serving import port_of, serving

EXAMPLES = 15
FEW = 3
ENDS_KEYS = ("/v1/keys/rotate", "/v1/keys/current", "/v1/keys/{key_id}/revoke")
SPEC_FIELDS = {
    "reservation_id", "github_user", "gpu_count", "gpu_type", "status", "created_at", "expires_at", "launched_at",
    "reservation_ended", "duration_hours", "pod_name", "namespace", "ssh_command", "node_port", "node_ip",
    "queue_position", "estimated_wait_minutes", "failure_reason", "last_queue_update", "cancelled_at",
}  # fmt: skip


async def test_every_endpoint_is_described_with_every_error_it_can_answer(api: Api) -> None:
    document = (await api.anonymous().get("/openapi.json")).json()
    paths = document["paths"]
    there = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    assert there <= ENDPOINT_RULES.keys()
    for path, operations in paths.items():
        for operation in operations.values():
            assert operation["summary"], path
            if not path.startswith("/v1"):
                continue
            if operation["x-required-role"] != "open":
                assert operation["security"], path
                assert {"401", "503"} <= operation["responses"].keys(), path
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    schema = answer["content"]["application/problem+json"]["schema"]
                    assert list(answer["content"]) == ["application/problem+json"], path
                    assert schema == {"$ref": "#/components/schemas/Problem"}, path
    assert document["components"]["schemas"].keys() >= {"JobView", "Problem", "SubmitRequest", "Health"}
    assert not document["components"]["schemas"].keys() & {"HTTPValidationError", "ValidationError"}


async def test_a_job_has_the_specifications_fields(api: Api) -> None:
    document = (await api.anonymous().get("/openapi.json")).json()
    job = document["components"]["schemas"]["JobView"]
    assert job["properties"].keys() >= SPEC_FIELDS
    # What came later has a default, for clients that meet an older server; the server always tells it.
    assert job["properties"].keys() - set(job["required"]) <= {
        "priority",
        "wait_until",
        "setup_outcome",
        "users",
        "jupyter",
        "gpus",
        "scratch_reason",
        "command",
        "exit_code",
        "outcome",
    }
    submit = document["paths"]["/v1/jobs/submit"]["post"]
    assert submit["requestBody"]["content"]["application/json"]["examples"]
    assert {p["name"] for p in submit["parameters"]} == {"idempotency-key"}


async def test_swagger_is_served_at_docs(api: Api) -> None:
    answer = await api.anonymous().get("/docs")
    assert answer.status_code == 200
    assert "swagger" in answer.text.lower()


async def test_swagger_needs_no_other_host(api: Api) -> None:
    page = await api.anonymous().get("/docs")
    policy = page.headers["content-security-policy"]
    assert "http" not in policy
    assert "unsafe" not in policy
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"docs/swagger-ui.css", "docs/swagger-ui-bundle.js", "docs/docs.js"} <= set(loaded)
    for address in loaded:
        assert "://" not in address
        if not address.startswith("data:"):
            answer = await api.anonymous().get(f"/{address}")
            assert answer.status_code == 200, address
            if not address.endswith(".json"):
                again = await api.anonymous().get(f"/{address}", headers={"If-None-Match": answer.headers["etag"]})
                assert again.status_code == 304
                plain = await api.anonymous().get(f"/{address}", headers={"Accept-Encoding": "identity"})
                assert plain.content == answer.content
    assert (await api.anonymous().get("/docs/app.py")).status_code == 404


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def test_the_start_page_is_for_people_and_for_programs(api: Api) -> None:
    page = await api.anonymous().get("/", headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "gpu-dev reserve" in page.text
    assert 'href="docs"' in page.text
    document = (await api.anonymous().get("/")).json()
    assert (document["name"], document["docs"]) == ("gpu-dev", "/docs")


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/v1/jobs", 401)])
async def test_an_error_in_a_browser_is_a_page_and_for_programs_a_problem(api: Api, path: str, status: int) -> None:
    page = await api.anonymous().get(path, headers=BROWSER)
    assert page.status_code == status
    assert page.headers["content-type"].startswith("text/html")
    assert 'href="/docs"' in page.text
    problem = await api.anonymous().get(path)
    assert problem.status_code == status
    assert problem.headers["content-type"] == "application/problem+json"


@dataclass
class Server:
    url: str
    secret: str


@pytest.fixture
def server(settings: Settings) -> Iterator[Server]:
    """The API on a thread of its own, as schemathesis blocks while it asks; nodes, a user and his key are there."""
    made: list[Server] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        stores, changes = open_stores(settings), PostgresReservationChanges(settings.database)
        changes.start()
        lease = await stores.leases.acquire(PLANNING_LEASE, "test", timedelta(hours=1))
        assert lease is not None
        nodes = [Node("node-1", "h100", 8), Node("cpu-1", "cpu-x86", 3)]
        await stores.nodes.publish_nodes(lease, nodes, datetime.now(UTC))
        user = await stores.users.add_user("ada", Role.ADMIN)
        secret = (await stores.users.issue_key(user.user_id, None, "test")).secret
        served = replace(settings, database=replace(settings.database, user=API))
        api_stores, often = open_stores(served), Rate(10**6, 60)
        services = api_services(api_stores, changes, PublishedKeys(), SystemClock(), served)
        app = create_app(replace(services, request_limits=RequestLimits(logins=often, wrong_keys=often)))
        async with serving(app) as server:
            made.append(Server(f"http://127.0.0.1:{port_of(server)}", secret))
            started.set()
            await asyncio.to_thread(stop.wait)
        await changes.close()
        await api_stores.close()
        await stores.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    yield made[0]
    stop.set()
    thread.join()


CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "mode"), [*(("an admin", mode) for mode in GenerationMode), ("nobody", GenerationMode.POSITIVE)]
)
def test_no_request_of_any_shape_is_answered_in_an_undocumented_way(
    server: Server, who: str, mode: GenerationMode
) -> None:
    """Admins reach every endpoint; whoever has no key must reach none, with whatever they send."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    headers = {"Authorization": f"Bearer {server.secret}"} if who == "an admin" else {}
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in ENDS_KEYS and headers:
            continue  # it would take the key away; test_authentication and test_administering have it
        if mode is GenerationMode.NEGATIVE and not (operation.body or any(operation.iter_parameters())):
            continue  # there is nothing to get wrong

        @seed(7)
        @hypothesis_settings(
            max_examples=EXAMPLES if headers else FEW,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Case) -> None:
            answer = case.call(headers=headers, timeout=10)
            tried.add((case.path, answer.status_code))
            case.validate_response(answer, checks=CHECKS)

        attempt()
    if not headers:
        closed = {status for path, status in tried if not path.startswith(("/health", "/v1/auth/"))}
        assert closed == {401}
        return
    assert ("/v1/jobs", 200) in tried or mode is GenerationMode.NEGATIVE
    assert ("/v1/jobs/submit", 422) in tried


async def test_a_key_is_needed_for_all_of_v1_in_the_document_and_in_truth(api: Api) -> None:
    document = (await api.anonymous().get("/openapi.json")).json()
    client: httpx2.AsyncClient = api.anonymous()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answer = await client.request(method, path.replace("{job_id}", "abcd"))
            assert (answer.status_code == 401) == ("security" in operation), path
