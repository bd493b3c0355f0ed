"""Whatever text is put wherever the API takes text, it stays text: SQL, shell, YAML, headers, paths, addresses.

The fields are found in the OpenAPI document, so that one that is added tomorrow is tried tomorrow.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from gpudev.api.http.openapi import openapi_document
from gpudev.domain.access.ssh_keys import check_github_user
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Invalid
from gpudev.http_edge.rate_limits import Rate, RequestLimits
from support.api.harness import Api, public_key, submit

PAYLOADS = {
    "sql": "x'; UPDATE api_users SET role='admin'; DROP TABLE audit_log; --",
    "sql, escaped": "x\\'; DROP TABLE reservations; --",
    "sql, union": "0) UNION SELECT key_hash FROM api_keys --",
    "shell": "$(touch {canary}) `touch {canary}`; touch {canary} && | > {canary} #",
    "shell, option": "--help",
    "template": "{{{{7*7}}}} ${{7*7}} %s %n {{0.__class__}}",
    "yaml": "a: !!python/object/apply:os.system [touch {canary}]\n- b: *x",
    "header": "x\r\nX-Forged: 1\r\n\r\n<script>alert(1)</script>",
    "path": "../../../../etc/passwd",
    "path, hidden": "..%2f..%2fetc/passwd\u2025",
    "nul": "a\x00b",
    "unprintable": "\x1b[2J\u202e\ufeff\ud7ff",
    "address": "http://169.254.169.254/latest/meta-data/",
    "long": "a" * 20_000,
}
VALID = {
    "/v1/jobs/submit": {"gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": "none"},
    "/v1/disks": {"disk_name": "fine"},
    "/v1/disks/{name}/rename": {"new_name": "other"},
    "/v1/disks/{name}/clone": {"new_name": "other"},
    "/v1/users": {"username": "fine"},
    "/v1/users/{username}/role": {"role": "user"},
    "/v1/auth/aws-login": {"method": "POST", "url": "https://sts/", "headers": {}, "body": "x"},
}
ENDS_KEYS = ("/v1/keys/rotate", "/v1/keys/current", "/v1/keys/{key_id}/revoke")
TELLTALES = ("syntax error", "asyncpg", "Traceback", "psycopg", "PostgreSQL", 'File "', "relation ")


def operations(api: Api) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in openapi_document(api.app)["paths"].items():
        for method, operation in methods.items():
            if path not in ENDS_KEYS and not path.endswith("/events"):
                yield method.upper(), path, operation


def text_fields(api: Api, operation: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Of the body: every field that takes text, or a list of it."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    schema = openapi_document(api.app)["components"]["schemas"].get(name, {})
    for field, described in schema.get("properties", {}).items():
        kinds = [described, *described.get("anyOf", [])]
        if any(kind.get("type") == "string" for kind in kinds):
            yield field, False
        elif any(kind.get("type") == "array" for kind in kinds):
            yield field, True


def fill(path: str, **values: str) -> str:
    usual = {"job_id": "ffff", "name": "nobodys", "operation_id": "ffff", "username": "nobody", "key_id": "1"}
    usual["github_user"] = "nobody"
    return re.sub(r"{(\w+)}", lambda found: quote({**usual, **values}[found[1]], safe=""), path)


@pytest.fixture
async def root(api: Api) -> httpx2.AsyncClient:
    often = Rate(10**6, 60)
    api.restart(request_limits=RequestLimits(logins=often, wrong_keys=often))
    return await api.as_user("root", Role.ADMIN)


def payloads(tmp_path: Path) -> dict[str, str]:
    canary = str(tmp_path / "canary")
    return {
        kind: text.format(canary=canary) if "{canary}" in text or "{{" in text else text
        for kind, text in PAYLOADS.items()
    }


def check(answer: httpx2.Response, what: str) -> None:
    assert answer.status_code < 500, f"{what}: {answer.text}"
    assert "x-forged" not in answer.headers, what
    if answer.status_code >= 400:
        detail = answer.json()["detail"]
        assert not [word for word in TELLTALES if word in detail], f"{what}: {detail}"
        assert len(detail) < 1000, what
        assert "\n" not in detail, what
        assert "\r" not in detail, what


@pytest.mark.slow
async def test_text_stays_text_in_every_field_of_every_body(api: Api, root: httpx2.AsyncClient, tmp_path: Path) -> None:
    tried = 0
    for method, path, operation in operations(api):
        for field, is_list in text_fields(api, operation):
            for kind, text in payloads(tmp_path).items():
                body = {**VALID.get(path, {}), field: [text] if is_list else text}
                content = json.dumps(body).encode()
                headers = {"Content-Type": "application/json"}
                answer = await root.request(method, fill(path), content=content, headers=headers)
                check(answer, f"{kind} in {field} of {method} {path}")
                tried += 1
    assert tried > 200
    await everything_is_as_it_was(api, tmp_path)


@pytest.mark.slow
async def test_text_stays_text_in_every_path_query_and_header(
    api: Api, root: httpx2.AsyncClient, tmp_path: Path
) -> None:
    tried = 0
    for method, path, operation in operations(api):
        for parameter in operation.get("parameters", []):
            for kind, text in payloads(tmp_path).items():
                name, url, params, headers = parameter["name"], fill(path), {}, {}
                match parameter["in"]:
                    case "path":
                        url = fill(path, **{name: text[:2000]})
                    case "query":
                        params = {name: text[:2000]}
                    case "header":
                        headers = {name: "".join(c for c in text if c.isascii() and c.isprintable())[:2000]}
                content = json.dumps(VALID[path]).encode() if path in VALID else None
                if content:
                    headers["Content-Type"] = "application/json"
                answer = await root.request(method, url, params=params, headers=headers, content=content)
                check(answer, f"{kind} in {parameter['in']} {name} of {method} {path}")
                tried += 1
    assert tried > 200
    await everything_is_as_it_was(api, tmp_path)


async def everything_is_as_it_was(api: Api, tmp_path: Path) -> None:
    assert not (tmp_path / "canary").exists()
    users = {user.username: user.role for user in await api.services.users.list_users()}
    assert users.pop("root") is Role.ADMIN
    assert set(users.values()) <= {Role.USER}, "nobody became anything"
    assert users.keys() <= {"fine"}
    assert api.published.asked == [], "nobody was asked for the keys of what is no name"
    async with api.world.stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") > 20
        assert await connection.fetchval("SELECT count(*) FROM gpu_types") > 5


async def test_a_name_for_people_comes_back_as_it_was_given(api: Api, ada: httpx2.AsyncClient) -> None:
    for name in (PAYLOADS["sql"], "$(reboot) `id`", "{{7*7}}", "<b>Ada's</b>", "--help", "../etc"):
        job = await submit(ada, name=name[:63])
        assert (await ada.get(f"/v1/jobs/{job['job_id']}")).json()["name"] == name[:63]


@pytest.mark.parametrize(
    "name",
    [
        "evil.example/x",
        "@evil.example",
        "..",
        ".",
        "a?b",
        "a#b",
        "a/b",
        "%2e%2e",
        "a\\b",
        "a b",
        "",
        "-a",
        "a" * 40,
        "é",
    ],
)
def test_a_github_name_is_never_part_of_another_address(name: str) -> None:
    with pytest.raises(Invalid):
        check_github_user(name)
