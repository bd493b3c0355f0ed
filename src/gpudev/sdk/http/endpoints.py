"""Endpoints as data: method, path, model of the response, and whether a repeat is safe."""

import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from gpudev.sdk.errors import UsageError
from gpudev.wire import codec
from gpudev.wire.reservations import CancelRequest, ExtendRequest, JobList, JobView, PriorityRequest, SubmitRequest

_T = TypeVar("_T")


class ApiCall(NamedTuple, Generic[_T]):
    """One request, and the model of its response."""

    model: type[_T]
    method: str
    path: str
    body: Any = None
    """JSON-serializable."""
    headers: Mapping[str, str] = MappingProxyType({})
    repeatable: bool = False
    """Whether a repeat is safe."""


class ApiReply(NamedTuple, Generic[_T]):
    """A response: raw, for `--json`, and decoded."""

    raw: bytes
    value: _T


def read_call(model: type[_T], path: str, query: Mapping[str, Any] | None = None) -> ApiCall[_T]:
    """A GET request."""
    return ApiCall(model, "GET", f"{path}?{urlencode(query, doseq=True)}" if query else path, repeatable=True)


def idempotent_call(
    model: type[_T], method: str, path: str, body: object = None, *, idempotency_key: str | None = None
) -> ApiCall[_T]:
    """A request with an idempotency key: takes effect once, however often it is sent."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    return ApiCall(model, method, path, body, headers, repeatable=True)


def path_segment(name: str, kind: str) -> str:
    """A name, quoted as one path segment. An empty or dotted name would change the path."""
    if name in ("", ".", ".."):
        raise UsageError(f"invalid {kind} {name!r}")
    return quote(name, safe="")


def job_path(job_id: str) -> str:
    return f"/v1/jobs/{path_segment(job_id, 'reservation')}"


def submit_job(request: SubmitRequest, idempotency_key: str | None = None) -> ApiCall[JobView]:
    body = codec.encode_model(request, without_none=True)
    return idempotent_call(JobView, "POST", "/v1/jobs/submit", body, idempotency_key=idempotency_key)


def get_job(job_id: str) -> ApiCall[JobView]:
    return read_call(JobView, job_path(job_id))


def list_jobs(query: Mapping[str, Any]) -> ApiCall[JobList]:
    return read_call(JobList, "/v1/jobs", query)


def cancel_job(job_id: str, exit_code: int | None = None) -> ApiCall[JobView]:
    """`exit_code`: of the command that ran there. An older server ignores it."""
    body = None if exit_code is None else codec.encode_model(CancelRequest(exit_code=exit_code))
    return ApiCall(JobView, "POST", f"{job_path(job_id)}/cancel", body, repeatable=True)


def extend_job(job_id: str, request: ExtendRequest) -> ApiCall[JobView]:
    return ApiCall(JobView, "POST", f"{job_path(job_id)}/extend", codec.encode_model(request))


def prioritise_job(job_id: str, request: PriorityRequest) -> ApiCall[JobView]:
    return ApiCall(JobView, "POST", f"{job_path(job_id)}/priority", codec.encode_model(request), repeatable=True)
