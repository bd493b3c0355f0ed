"""The OpenAPI document: description, examples, and the errors of every endpoint."""

from typing import Any, assert_never

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from gpudev.api.permissions import EndpointRule, RequiredRole, get_rule
from gpudev.wire.cluster import Problem

DESCRIPTION = """
Reserve GPUs and get a shell on them.

Submit with `POST /v1/jobs/submit`, follow with `GET /v1/jobs/{job_id}/events`, log in with the `ssh_command` of the
active reservation. All of `/v1` requires `Authorization: Bearer gpudev_…`. Errors are `application/problem+json`:
`detail` is one sentence for people, `code` is stable, `field` names the invalid field. Every response has an
`X-Request-ID`.
"""
_STATUS_MEANINGS = {
    400: "The body is not JSON",
    401: "No valid API key",
    403: "The user's role does not permit this",
    404: "Not found, or another user's",
    409: "Not possible in the current state, or the id is ambiguous; see `code`",
    413: "The body is larger than 1 MiB",
    415: "The Content-Type is not application/json",
    422: "Invalid request; `field` names the invalid field",
    426: "WebSocket required",
    429: "A limit of this user or a rate limit of this address is reached",
    503: "The database or GitHub does not answer; try again",
}
SUBMIT_EXAMPLES = {
    "github": {
        "summary": "Two H100 for four hours, with the public keys of a GitHub user",
        "value": {"gpu_type": "h100", "gpu_count": 2, "duration_hours": 4, "github_user": "octocat"},
    },
    "key": {
        "summary": "A CPU dev server with a given public key, without a disk",
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
    "detail": "invalid GPU count 3 for h100; ask for 1, 2, 4, 8, 16, 24, 32",
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
    """The document, cached. Without FastAPI's schemas of validation errors: ours are problem documents."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        schemas["Problem"] = TypeAdapter(Problem).json_schema() | {"examples": [_EXAMPLE_PROBLEM]}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _document_rule(operation, get_rule([method.upper()], path))
        app.openapi_schema = document
    return app.openapi_schema


def _document_rule(operation: dict[str, Any], rule: EndpointRule) -> None:
    operation["x-required-role"] = rule.required_role.value
    operation["x-own-things-only"] = rule.own_only
    operation["description"] = f"{operation.get('description', '')}\n\n{rule.description}".strip()
    for status, response in problem_responses(*_guard_statuses(rule)).items():
        operation["responses"].setdefault(str(status), response)


def _guard_statuses(rule: EndpointRule) -> tuple[int, ...]:
    """Statuses that the request guard may return before the endpoint runs."""
    match rule.required_role:
        case RequiredRole.OPEN:
            return (429,) if rule.is_login else ()
        case RequiredRole.USER:
            return (401, 429)
        case RequiredRole.OPERATOR | RequiredRole.ADMIN:
            return (401, 403, 429)
        case _ as never:
            assert_never(never)
