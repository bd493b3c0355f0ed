"""Every endpoint of the OpenAPI document, tried with no key, with keys that are none any more, as somebody else, and
with every role. What comes out is what the table of access says."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter
from starlette.responses import Response

from gpudev.api import permissions
from gpudev.api.app import create_app
from gpudev.api.http.openapi import openapi_document
from gpudev.api.http.routing import Caller, V1Route, check_routes
from gpudev.api.permissions import ENDPOINT_RULES, MissingRule, RequiredRole
from gpudev.domain.access.users import Role
from gpudev.http_edge.rate_limits import Rate, RequestLimits
from support.api.harness import Api, identifier, refused, submit

NOBODY = "ffffffff-0000-4000-8000-000000000000"
BODIES: dict[str, dict[str, Any]] = {
    "/extend": {"extension_hours": 1},
    "/priority": {"priority": 1},
    "/rename": {"new_name": "other"},
    "/clone": {"new_name": "other"},
    "/resize": {"size_gb": 500},
    "/role": {"role": "user"},
    "/users": {"github_users": ["octocat"]},
}
ALLOWED = {
    RequiredRole.USER: (Role.USER, Role.OPERATOR, Role.ADMIN),
    RequiredRole.OPERATOR: (Role.OPERATOR, Role.ADMIN),
    RequiredRole.ADMIN: (Role.ADMIN,),
}


@pytest.fixture
def api(api: Api) -> Api:
    """With room for many wrong keys: it is not their number that is tried here."""
    many = Rate(100_000, 60)
    api.restart(request_limits=RequestLimits(logins=many, wrong_keys=many, rotations=many))
    return api


_PATHS: dict[str, Any] = {}
"""As documented: the same in every app, and most of what a test here would cost."""


def endpoints(api: Api, *needs: RequiredRole) -> Iterator[tuple[str, str]]:
    if not _PATHS:
        _PATHS.update(openapi_document(api.app)["paths"])
    for path, operations in _PATHS.items():
        for method, operation in operations.items():
            if RequiredRole(operation["x-required-role"]) in needs:
                yield method.upper(), path


async def ask(client: httpx2.AsyncClient, method: str, path: str, **there: str) -> httpx2.Response:
    names = {"job_id": NOBODY, "name": "nobodys", "operation_id": NOBODY, "username": "nobody", "key_id": "999999"}
    names["github_user"] = "octocat"
    body = next((body for end, body in BODIES.items() if path.endswith(end)), {})
    url = path.format(**{**names, **there})
    return await client.request(method, url, json=body if method == "POST" else None)


async def key_that_is_none(api: Api, why: str) -> dict[str, str]:
    users, administration = api.services.users, api.world.stores.administration
    await users.add_user("somebody-else", Role.ADMIN)  # the last admin could not be disabled
    user = await users.add_user(why, Role.ADMIN)
    ttl = timedelta(seconds=-1) if why == "expired" else None
    secret = (await users.issue_key(user.user_id, ttl, why)).secret
    match why:
        case "revoked":
            await administration.revoke_key((await administration.list_keys(why))[0].key_id)
        case "disabled":
            await administration.set_active(why, False)
        case "disabled-for-a-while":
            await administration.set_active(why, False)
            await administration.set_active(why, True)
        case "rotated":
            client = api.anonymous({"Authorization": f"Bearer {secret}"})
            assert (await client.post("/v1/keys/rotate")).status_code == 200
        case "misspelt":
            secret = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    return {"Authorization": f"Bearer {secret}"}


async def test_the_document_and_the_table_have_the_same_endpoints(api: Api) -> None:
    there = {f"{method} {path}" for method, path in endpoints(api, *RequiredRole)}
    assert there == ENDPOINT_RULES.keys(), "remove lines of endpoints that are gone"
    for path, operations in openapi_document(api.app)["paths"].items():
        for method, operation in operations.items():
            rule = ENDPOINT_RULES[f"{method.upper()} {path}"]
            assert operation["x-required-role"] == rule.required_role
            assert ("security" in operation) == (rule.required_role is not RequiredRole.OPEN), path
            if rule.required_role in (RequiredRole.OPERATOR, RequiredRole.ADMIN):
                assert "403" in operation["responses"], path
            if rule.required_role is not RequiredRole.OPEN or rule.is_login:
                assert "429" in operation["responses"], path


def test_the_documentation_lists_every_endpoint_with_its_role() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    told = dict(re.findall(r"^\| `([A-Z]+ /\S*)` \| (\w+) \| (?:own)? *\|$", text, re.MULTILINE))
    assert told == {line: rule.required_role.value for line, rule in ENDPOINT_RULES.items()}, (
        "see 'Required roles' in docs/api.md"
    )


@pytest.mark.parametrize(
    "why", ["none", "expired", "revoked", "disabled", "disabled-for-a-while", "rotated", "misspelt"]
)
async def test_without_a_key_that_counts_nothing_is_answered(api: Api, why: str, subtests: pytest.Subtests) -> None:
    client = api.anonymous(await key_that_is_none(api, why) if why != "none" else {})
    for method, path in endpoints(api, RequiredRole.USER, RequiredRole.OPERATOR, RequiredRole.ADMIN):
        with subtests.test(method=method, path=path):
            refused(await ask(client, method, path), 401, "unauthenticated")
    for method, path in endpoints(api, RequiredRole.OPEN):
        if not ENDPOINT_RULES[f"{method} {path}"].is_login:
            with subtests.test(method=method, path=path):
                assert (await ask(client, method, path)).status_code == 200


@pytest.mark.parametrize("role", list(Role))
async def test_every_role_may_do_what_the_table_says_and_no_more(
    api: Api, role: Role, subtests: pytest.Subtests
) -> None:
    for method, path in endpoints(api, RequiredRole.USER, RequiredRole.OPERATOR, RequiredRole.ADMIN):
        with subtests.test(method=method, path=path):
            client = await api.as_user(f"a-{role}", role)  # a new key each time: some endpoints end theirs
            answer = await ask(client, method, path)
            if role in ALLOWED[ENDPOINT_RULES[f"{method} {path}"].required_role]:
                assert answer.status_code not in (401, 403), answer.text
            else:
                refused(answer, 403, "forbidden")
            assert answer.status_code < 500


async def test_what_is_anothers_is_not_there(api: Api, subtests: pytest.Subtests) -> None:
    """Answered in exactly the words in which what does not exist is answered."""
    ada, bob = await api.as_user("ada"), await api.as_user("bob")
    job = await submit(ada)
    await ada.post("/v1/disks", json={"disk_name": "hers", "size_gb": 10})
    operation = (await ada.get("/v1/disks/hers/operations")).json()
    hers = {"job_id": job["job_id"], "name": "hers", "operation_id": str(operation["operations"][0]["operation_id"])}
    tried = 0
    for method, path in endpoints(api, RequiredRole.USER):
        if "{" not in path:
            continue
        with subtests.test(method=method, path=path):
            tried += 1
            mine, nobodys = await ask(bob, method, path, **hers), await ask(bob, method, path)
            detail = refused(mine, 404, "not_found")
            for name, other in {"job_id": NOBODY, "name": "nobodys", "operation_id": NOBODY}.items():
                detail = detail.replace(hers[name], other)
            assert detail == refused(nobodys, 404, "not_found")
    assert tried > 8
    assert (await api.world.get(identifier(job))).status.is_waiting, "nothing was done to it"
    assert [disk["disk_name"] for disk in (await ada.get("/v1/disks")).json()["disks"]] == ["hers"]
    assert (await bob.get("/v1/jobs")).json()["jobs"] == []
    assert (await bob.get("/v1/disks")).json()["disks"] == []


async def test_operators_see_and_cancel_everybodys_reservations(api: Api) -> None:
    ada, bob = await api.as_user("ada"), await api.as_user("bob")
    operator = await api.as_user("olga", Role.OPERATOR)
    job, _ = await submit(ada), await submit(bob)
    assert len((await operator.get("/v1/jobs", params={"user": "all"})).json()["jobs"]) == 2
    of_ada = (await operator.get("/v1/jobs", params={"user": "ada"})).json()["jobs"]
    assert [found["user"] for found in of_ada] == ["ada"]
    assert (await operator.get("/v1/jobs")).json()["jobs"] == []
    assert (await operator.get(f"/v1/jobs/{job['job_id']}")).status_code == 200
    assert (await operator.post(f"/v1/jobs/{job['job_id']}/cancel")).json()["status"] == "cancelled"
    refused(await operator.get("/v1/jobs", params={"user": "nobody"}), 404, "not_found")
    refused(await bob.get("/v1/jobs", params={"user": "ada"}), 403, "forbidden")
    refused(await bob.get("/v1/jobs", params={"user": "nobody"}), 403, "forbidden")
    refused(await bob.get("/v1/jobs", params={"user": "all"}), 403, "forbidden")
    assert len((await bob.get("/v1/jobs", params={"user": "bob"})).json()["jobs"]) == 1


def test_an_endpoint_without_a_line_is_not_served(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(_caller: Caller) -> Response:
        return Response()

    router = APIRouter(route_class=V1Route)
    with pytest.raises(MissingRule, match="GET /v1/secret"):
        router.add_api_route("/v1/secret", handle)
    lines = {line: rule for line, rule in ENDPOINT_RULES.items() if line != "GET /v1/jobs"}
    monkeypatch.setattr(permissions, "ENDPOINT_RULES", lines)
    with pytest.raises(MissingRule, match="GET /v1/jobs"):
        create_app(api.services)


def test_an_endpoint_that_needs_a_key_cannot_be_one_that_checks_none() -> None:
    async def handle() -> Response:
        return Response()

    router = APIRouter()
    router.add_api_route("/v1/jobs", handle)
    with pytest.raises(MissingRule, match="only a V1Route"):
        check_routes(router)
