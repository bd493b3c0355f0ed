"""Endpoints for disks: each calls one workflow and returns its result.

Changes take time, so they return an operation, which clients poll by its id.
"""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from gpudev.api.http.openapi import problem_responses
from gpudev.api.http.parameters import DiskName, IncludeDeleted, OperationIdempotencyKey, OperationRef, SnapshotRef
from gpudev.api.http.responses import JsonResponse
from gpudev.api.http.routing import Caller, V1Route
from gpudev.wire.disks import (
    CloneDiskRequest,
    ContentsView,
    CreateDiskRequest,
    DiskDetails,
    DiskList,
    OperationList,
    OperationView,
    RenameDiskRequest,
    ResizeDiskRequest,
    RestoreDiskRequest,
    SnapshotList,
)
from gpudev.workflows.disks.requests import AcceptedOperation, DiskRequests

_WRITE_ERRORS_WITH_BODY = problem_responses(400, 401, 404, 409, 413, 415, 422, 429, 503)
_WRITE_ERRORS = problem_responses(401, 404, 409, 422, 503)
_READ_ERRORS = problem_responses(401, 404, 422, 503)


@dataclass(frozen=True, slots=True)
class DiskEndpoints:
    disks: DiskRequests

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/disks", tags=["disks"], route_class=V1Route)
        self._add_reads(router)
        self._add_writes(router)
        return router

    def _add_reads(self, router: APIRouter) -> None:
        add = router.add_api_route
        add(
            "",
            self.list_disks,
            response_model=DiskList,
            summary="List disks",
            responses=problem_responses(401, 422, 503),
        )
        add("/{name}", self.get, response_model=DiskDetails, summary="Get a disk", responses=_READ_ERRORS)
        add(
            "/{name}/snapshots",
            self.list_snapshots,
            response_model=SnapshotList,
            summary="List a disk's snapshots",
            responses=_READ_ERRORS,
        )
        add(
            "/{name}/contents",
            self.contents,
            response_model=ContentsView,
            summary="Contents of a disk or snapshot",
            responses=problem_responses(401, 404, 409, 422, 503),
        )
        add(
            "/{name}/operations",
            self.list_operations,
            response_model=OperationList,
            summary="List a disk's operations",
            responses=_READ_ERRORS,
        )
        add(
            "/{name}/operations/{operation_id}",
            self.operation,
            response_model=OperationView,
            summary="Get an operation",
            responses=problem_responses(401, 404, 409, 422, 503),
        )

    def _add_writes(self, router: APIRouter) -> None:
        for method, path, endpoint, summary, responses in (
            ("POST", "", self.create, "Create a disk", problem_responses(400, 401, 409, 413, 415, 422, 429, 503)),
            ("DELETE", "/{name}", self.delete, "Delete a disk (it can be restored for a while)", _WRITE_ERRORS),
            (
                "POST",
                "/{name}/restore",
                self.restore,
                "Restore a deleted disk or a snapshot",
                _WRITE_ERRORS_WITH_BODY,
            ),
            ("POST", "/{name}/rename", self.rename, "Rename a disk", _WRITE_ERRORS_WITH_BODY),
            ("POST", "/{name}/resize", self.resize, "Resize a disk", _WRITE_ERRORS_WITH_BODY),
            ("POST", "/{name}/clone", self.clone, "Clone a disk or a snapshot", _WRITE_ERRORS_WITH_BODY),
            ("POST", "/{name}/snapshots", self.take_snapshot, "Take a snapshot", _WRITE_ERRORS),
        ):
            router.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=202,
                response_model=OperationView,
                summary=summary,
                responses=responses,
            )

    # --- reads -----------------------------------------------------------------------------------------------------

    async def list_disks(self, caller: Caller, deleted: IncludeDeleted = False) -> Response:
        """Sorted by name, with size, the reservation that uses it, last use and last snapshot."""
        return JsonResponse(DiskList(disks=await self.disks.disks(caller.user, deleted=deleted)))

    async def get(self, name: DiskName, caller: Caller, deleted: IncludeDeleted = False) -> Response:
        """With its snapshots, history and latest contents."""
        return JsonResponse(await self.disks.details(caller.user, name, deleted=deleted))

    async def list_snapshots(self, name: DiskName, caller: Caller, deleted: IncludeDeleted = False) -> Response:
        """Newest first. Only snapshots that gpu-dev took."""
        found = await self.disks.snapshots(caller.user, name, deleted=deleted)
        return JsonResponse(SnapshotList(snapshots=found))

    async def contents(
        self, name: DiskName, caller: Caller, snapshot_id: SnapshotRef = None, deleted: IncludeDeleted = False
    ) -> Response:
        """As listed at the end of a reservation: totals, and the entries nearest to the top."""
        return JsonResponse(await self.disks.contents(caller.user, name, snapshot_id, deleted=deleted))

    async def list_operations(self, name: DiskName, caller: Caller, deleted: IncludeDeleted = False) -> Response:
        """The last 50, newest first, including those requested by the system."""
        found = await self.disks.operations(caller.user, name, deleted=deleted)
        return JsonResponse(OperationList(operations=found))

    async def operation(self, name: DiskName, operation_id: OperationRef, caller: Caller) -> Response:
        """Poll until `state` is `done` (see `result`) or `failed` (see `error`)."""
        return JsonResponse(await self.disks.operation(caller.user, name, operation_id))

    # --- writes ----------------------------------------------------------------------------------------------------

    async def create(
        self, body: CreateDiskRequest, caller: Caller, idempotency_key: OperationIdempotencyKey = None
    ) -> Response:
        """The disk can be used in a reservation immediately."""
        return _accepted(await self.disks.create(caller.user, body, idempotency_key))

    async def delete(self, name: DiskName, caller: Caller, idempotency_key: OperationIdempotencyKey = None) -> Response:
        """Hidden immediately. It can be restored for 30 days; nothing is removed before."""
        return _accepted(await self.disks.delete(caller.user, name, idempotency_key))

    async def restore(
        self, name: DiskName, body: RestoreDiskRequest, caller: Caller, idempotency_key: OperationIdempotencyKey = None
    ) -> Response:
        """With `snapshot_id`: restores that snapshot; the current contents are saved in a snapshot first. Without:
        restores the last deleted disk of this name."""
        return _accepted(await self.disks.restore(caller.user, name, body, idempotency_key))

    async def rename(
        self, name: DiskName, body: RenameDiskRequest, caller: Caller, idempotency_key: OperationIdempotencyKey = None
    ) -> Response:
        """Immediate. Not possible while a reservation uses the disk."""
        return _accepted(await self.disks.rename(caller.user, name, body, idempotency_key))

    async def resize(
        self, name: DiskName, body: ResizeDiskRequest, caller: Caller, idempotency_key: OperationIdempotencyKey = None
    ) -> Response:
        """Possible while a reservation uses the disk. Disks can only grow."""
        return _accepted(await self.disks.resize(caller.user, name, body, idempotency_key))

    async def clone(
        self, name: DiskName, body: CloneDiskRequest, caller: Caller, idempotency_key: OperationIdempotencyKey = None
    ) -> Response:
        """The clone is independent of its source."""
        return _accepted(await self.disks.clone(caller.user, name, body, idempotency_key))

    async def take_snapshot(
        self, name: DiskName, caller: Caller, idempotency_key: OperationIdempotencyKey = None
    ) -> Response:
        """Possible while a reservation uses the disk. A snapshot is also taken at the end of every reservation."""
        return _accepted(await self.disks.snapshot(caller.user, name, idempotency_key))


def _accepted(accepted: AcceptedOperation) -> JsonResponse:
    operation = accepted.operation
    headers = {"Location": f"/v1/disks/{operation.disk_name}/operations/{operation.operation_id}"}
    if accepted.replayed:
        headers["Idempotent-Replay"] = "true"
    return JsonResponse(operation, 202, headers)
