"""Endpoints about the service itself: health, GPU types and settings. They reveal no secrets."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Path
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import check_type_name
from gpudev.api.http.responses import JsonResponse
from gpudev.api.http.routing import Caller, V1Route
from gpudev.domain.cluster import GpuType
from gpudev.domain.errors import Invalid, Unavailable
from gpudev.ports.cluster import CatalogueStore
from gpudev.settings import Settings
from gpudev.version import __version__
from gpudev.wire.admin import GpuTypeChange, GpuTypeList, GpuTypeView, SettingsView
from gpudev.wire.cluster import Health

log = structlog.get_logger()
_MAX_DESCRIPTION = 200
_SECRET_NAME = re.compile(r"password|secret|token|key|credential", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/?#]*@")

TypeName = Annotated[
    Annotated[str, AfterValidator(check_type_name)],
    Path(description="A GPU type", examples=["h100"], json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,50}$"}),
]


@dataclass(frozen=True, slots=True)
class ConfigurationEndpoints:
    catalogue: CatalogueStore
    settings: Settings

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", tags=["administration"], route_class=V1Route)
        read_errors = problem_responses(401, 403, 422, 429, 503)
        router.add_api_route(
            "/gpu-types",
            self.list_types,
            response_model=GpuTypeList,
            summary="List GPU types, including inactive ones",
            responses=read_errors,
        )
        router.add_api_route(
            "/gpu-types/{name}",
            self.revise_type,
            methods=["PATCH"],
            response_model=GpuTypeView,
            summary="Activate, deactivate or describe a GPU type",
            responses=problem_responses(400, 401, 403, 404, 413, 415, 422, 429, 503),
        )
        router.add_api_route(
            "/settings",
            self.show_settings,
            response_model=SettingsView,
            summary="Settings of this API process",
            responses=read_errors,
        )
        return router

    async def list_types(self, _caller: Caller) -> Response:
        catalogue = await self.catalogue.catalogue()
        return JsonResponse(GpuTypeList(gpu_types=[_gpu_type_view(gpu_type) for gpu_type in catalogue.values()]))

    async def revise_type(self, name: TypeName, body: GpuTypeChange, caller: Caller, request: Request) -> Response:
        """Running and queued reservations continue. Within a second, an inactive type can no longer be requested."""
        if body.is_active is None and body.description is None:
            raise Invalid("no change given; give is_active, description or both", field="is_active")
        request.state.audit_target = f"{name} ({_describe_change(body)})"
        description = None if body.description is None else _check_description(body.description)
        changed = await self.catalogue.update_gpu_type(name, is_active=body.is_active, description=description)
        log.info("gpu_type.revised", gpu_type=name, is_active=changed.is_active, by=caller.user.username)
        return JsonResponse(_gpu_type_view(changed))

    async def show_settings(self, _caller: Caller) -> Response:
        """Other services, such as the processor, read their own environment."""
        return JsonResponse(SettingsView(settings=redact_settings(self.settings)))


def redact_settings(settings: Settings) -> dict[str, Any]:
    """Every setting by its dotted name, without secrets."""
    return dict(_flatten(settings, ""))


def _flatten(part: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for one in fields(part):
        value = getattr(part, one.name)
        if is_dataclass(value):
            yield from _flatten(value, f"{prefix}{one.name}.")
        else:
            yield f"{prefix}{one.name}", _redact(one.name, value)


def _redact(name: str, value: Any) -> Any:
    match value:
        case bool() | int() | float():
            return value
        case timedelta():
            return value.total_seconds()
        case _ if _SECRET_NAME.search(name):
            return "set" if value else "unset"
        case None:
            return None
        case tuple() | list() | set() | frozenset():
            return [_redact("", each) for each in value]
        case Mapping():
            # Operator-defined names: their values may be secrets.
            return sorted(str(each) for each in value)
        case _:
            return _USERINFO.sub("", str(value))


def _check_description(text: str) -> str:
    if len(text) > _MAX_DESCRIPTION or not text.isprintable():
        raise Invalid(
            f"description must be one line of at most {_MAX_DESCRIPTION} printable characters", field="description"
        )
    return text.strip()


def _describe_change(body: GpuTypeChange) -> str:
    parts = [] if body.is_active is None else ["active" if body.is_active else "inactive"]
    return ", ".join(parts + ([] if body.description is None else ["description changed"]))


def _gpu_type_view(gpu_type: GpuType) -> GpuTypeView:
    return GpuTypeView(
        name=gpu_type.name,
        instance_type=gpu_type.instance_type,
        max_gpus=gpu_type.max_gpus,
        cpus=gpu_type.cpus,
        memory_gb=gpu_type.memory_gb,
        multinode=gpu_type.multinode,
        description=gpu_type.description,
        is_active=gpu_type.is_active,
    )


# Health. Live: this process answers. Ready: the database answers and can write too. Without a processor the API is
# ready, because it can accept and show reservations, but degraded.


READY_TIMEOUT_SECONDS = 2.0
_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": Health, "description": "The database does not answer or cannot write"}
}


@dataclass(frozen=True, slots=True)
class HealthEndpoints:
    ping: Callable[[], Awaitable[None]]
    is_planning: Callable[[], Awaitable[bool]]
    timeout_seconds: float = READY_TIMEOUT_SECONDS

    def router(self) -> APIRouter:
        router = APIRouter(tags=["health"])
        add = router.add_api_route
        add("/health", self.ready, response_model=Health, summary="Same as /health/ready", responses=_NOT_READY)
        add("/health/live", self.live, response_model=Health, summary="Liveness")
        add("/health/ready", self.ready, response_model=Health, summary="Readiness", responses=_NOT_READY)
        return router

    async def live(self) -> Response:
        return JsonResponse(Health(status="ok", version=__version__, checks={}))

    async def ready(self) -> Response:
        """503 while the database does not answer within 2 seconds, or cannot write; `checks.database` says why.
        `checks.processor` shows whether a processor is alive."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self.ping()
                planning = await self.is_planning()
        except (Unavailable, TimeoutError) as error:
            checks = {"database": _describe_outage(error), "processor": "unknown"}
            return JsonResponse(Health(status="unavailable", version=__version__, checks=checks), 503)
        checks = {"database": "ok", "processor": "alive" if planning else "not alive"}
        return JsonResponse(Health(status="ok" if planning else "degraded", version=__version__, checks=checks))


def _describe_outage(error: Unavailable | TimeoutError) -> str:
    """Without the part after a colon, which is the cause (hosts, ports, paths): only for the log."""
    if not isinstance(error, Unavailable):
        return "does not answer"
    return error.message.partition(": ")[0].removeprefix("the database ")
