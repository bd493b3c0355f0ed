"""The OpenAPI document: errors of every endpoint, examples, and the front page's text."""

from typing import Any, assert_never

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from gpudev.api.permissions import EndpointRule, RequiredRole, get_rule
from gpudev.wire.cluster import Problem

DESCRIPTION = """
Reserve GPUs and get a shell on them.

Ask with `POST /v1/jobs/submit`, follow with `GET /v1/jobs/{job_id}/events`, log in with the `ssh_command` of the
active reservation. All of `/v1` needs `Authorization: Bearer gpudev_…`. Errors are `application/problem+json`: `detail`
is one sentence for people, `code` is stable, `field` names what was wrong. Every answer carries `X-Request-ID`.
"""
_STATUS_MEANINGS = {
    400: "The body is not JSON",
    401: "No valid API key",
    403: "Not for this user's role",
    404: "Not there, or not yours",
    409: "The present state does not allow it, or the id is ambiguous; `code` tells which",
    413: "The body is larger than 1 MiB",
    415: "The body is not sent as application/json",
    422: "It can never be granted as it stands; `field` names what is wrong",
    426: "It answers to WebSockets only",
    429: "A limit of this user is reached, or this address asks too often",
    503: "The database, or GitHub, does not answer; try again",
}
SUBMIT_EXAMPLES = {
    "github": {
        "summary": "Two H100 for four hours, for the keys a GitHub user publishes",
        "value": {"gpu_type": "h100", "gpu_count": 2, "duration_hours": 4, "github_user": "octocat"},
    },
    "key": {
        "summary": "A CPU dev server for a given public key, without a disk",
        "value": {
            "gpu_type": "cpu-x86",
            "gpu_count": 0,
            "ssh_public_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZzCJ1eTfSyOJPAqQ1ZVdH3dY2mUdUa4k0yRg5tNMvZ"],
            "disk_name": "none",
        },
    },
}
_EXAMPLE_PROBLEM = {
    "type": "urn:gpu-dev:problem:invalid",
    "title": "Invalid",
    "status": 422,
    "detail": "3 is no GPU count for h100; ask for 1, 2, 4, 8, 16, 24, 32",
    "code": "invalid",
    "field": "gpu_count",
    "request_id": "5b0c7d4d0f8e4a53a5e3f6c1d2b3a4f5",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _STATUS_MEANINGS[status], "content": content} for status in statuses}


def event_stream_response() -> dict[int | str, dict[str, Any]]:
    schema = {"type": "string", "description": "`event: job` with a JobView, `event: event` with a JobEvent"}
    return {200: {"description": "The stream", "content": {"text/event-stream": {"schema": schema}}}}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document, made once. FastAPI's own form of validation errors is not ours, so it is not in it."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        schemas["Problem"] = TypeAdapter(Problem).json_schema() | {"examples": [_EXAMPLE_PROBLEM]}
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                _document_rule(operation, get_rule([method.upper()], path))
        app.openapi_schema = made
    return app.openapi_schema


def _document_rule(operation: dict[str, Any], rule: EndpointRule) -> None:
    operation["x-required-role"] = rule.required_role.value
    operation["x-own-things-only"] = rule.own_only
    operation["description"] = f"{operation.get('description', '')}\n\n{rule.description}".strip()
    for status, answer in problem_responses(*_guard_statuses(rule)).items():
        operation["responses"].setdefault(str(status), answer)


def _guard_statuses(rule: EndpointRule) -> tuple[int, ...]:
    """What is answered before an endpoint is asked."""
    match rule.required_role:
        case RequiredRole.OPEN:
            return (429,) if rule.is_login else ()
        case RequiredRole.USER:
            return (401, 429)
        case RequiredRole.OPERATOR | RequiredRole.ADMIN:
            return (401, 403, 429)
        case _ as never:
            assert_never(never)
