"""Endpoints for reservations ("jobs"): each calls one workflow and returns its result."""

from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpudev.api.http.openapi import SUBMIT_EXAMPLES, event_stream_response, problem_responses
from gpudev.api.http.parameters import (
    AllUsers,
    CreatedAfter,
    CreatedBefore,
    Cursor,
    GpuTypeFilter,
    IdempotencyKey,
    JobId,
    LastEventId,
    Limit,
    OwnerFilter,
    Statuses,
    decode_cursor,
    encode_cursor,
)
from gpudev.api.http.responses import EventStream, JsonResponse
from gpudev.api.http.routing import Caller, V1Route
from gpudev.api.request_guard import RequestGuard
from gpudev.domain.access.users import User
from gpudev.domain.errors import Forbidden, NotFound
from gpudev.domain.ids import UserId
from gpudev.ports.access import UserStore
from gpudev.ports.reservations import JobQuery, ReservationStore
from gpudev.ports.sessions import AddonView
from gpudev.wire.reservations import CancelRequest, ExtendRequest, JobList, JobView, PriorityRequest, SubmitRequest
from gpudev.workflows.reservation_views import ReservationViews, find_job, sees_everything
from gpudev.workflows.reservations.reservation_actions import Cancellation, Extension, Prioritisation
from gpudev.workflows.reservations.reservation_stream import ReservationStream
from gpudev.workflows.reservations.submission import Submission


@dataclass(frozen=True, slots=True)
class JobEndpoints:
    reservations: ReservationStore
    users: UserStore
    views: ReservationViews
    submission: Submission
    cancellation: Cancellation
    extension: Extension
    prioritisation: Prioritisation
    stream: ReservationStream
    addons: AddonView

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=V1Route)
        add = router.add_api_route
        add(
            "/submit",
            self.submit,
            methods=["POST"],
            status_code=202,
            response_model=JobView,
            summary="Submit a reservation",
            responses=problem_responses(400, 401, 409, 413, 415, 422, 429, 503),
            openapi_extra={"requestBody": {"content": {"application/json": {"examples": SUBMIT_EXAMPLES}}}},
        )
        add(
            "",
            self.list_jobs,
            response_model=JobList,
            summary="List reservations",
            responses=problem_responses(401, 403, 404, 422, 503),
        )
        add(
            "/{job_id}",
            self.get,
            response_model=JobView,
            summary="Get a reservation",
            responses=problem_responses(401, 404, 409, 422, 503),
        )
        add(
            "/{job_id}/cancel",
            self.cancel,
            methods=["POST"],
            response_model=JobView,
            summary="Cancel a reservation",
            responses=problem_responses(400, 401, 404, 409, 413, 415, 422, 503),
        )
        add(
            "/{job_id}/extend",
            self.extend,
            methods=["POST"],
            response_model=JobView,
            summary="Extend a reservation",
            responses=problem_responses(400, 401, 404, 409, 413, 415, 422, 503),
        )
        add(
            "/{job_id}/priority",
            self.prioritise,
            methods=["POST"],
            response_model=JobView,
            summary="Set a queued reservation's priority (operators)",
            responses=problem_responses(400, 401, 403, 404, 409, 413, 415, 422, 503),
        )
        add(
            "/{job_id}/events",
            self.events,
            status_code=200,
            summary="Follow a reservation (server-sent events)",
            response_class=EventStream,
            responses=event_stream_response() | problem_responses(401, 404, 409, 422, 429, 503),
        )
        return router

    async def submit(self, body: SubmitRequest, caller: Caller, idempotency_key: IdempotencyKey = None) -> Response:
        """Validates and stores the request, and returns its id, queue position and estimate. The reservation starts
        without further requests; follow it with `GET /v1/jobs/{job_id}/events`."""
        submitted = await self.submission.submit(caller.user, body, idempotency_key)
        headers = {"Location": f"/v1/jobs/{submitted.reservation.reservation_id}"}
        if submitted.replayed:
            headers["Idempotent-Replay"] = "true"
        return JsonResponse(await self.views.view(submitted.reservation), 202, headers)

    async def list_jobs(
        self,
        *,
        caller: Caller,
        statuses: Statuses = [],  # noqa: B006 - never mutated, and FastAPI copies it
        gpu_type: GpuTypeFilter = None,
        created_after: CreatedAfter = None,
        created_before: CreatedBefore = None,
        cursor: Cursor = None,
        limit: Limit = 50,
        all_users: AllUsers = False,
        owner: OwnerFilter = None,
    ) -> Response:
        """Newest first. A full page has a `next_cursor` for the next one."""
        found = await self.reservations.list_jobs(
            JobQuery(
                user_id=await self._resolve_owner(caller.user, "all" if all_users else owner),
                statuses=tuple(statuses),
                gpu_type=gpu_type,
                created_after=created_after,
                created_before=created_before,
                before_seq=decode_cursor(cursor),
                # One extra row shows whether there is a next page.
                limit=limit + 1,
            )
        )
        page = found[:limit]
        more = encode_cursor(page[-1].seq) if len(found) > limit else None
        return JsonResponse(JobList(jobs=await self.views.views(page), next_cursor=more))

    async def _resolve_owner(self, caller: User, name: str | None) -> UserId | None:
        """None: all users."""
        if name is None or name == caller.username:
            return caller.user_id
        if not sees_everything(caller):
            raise Forbidden("only operators may list others' reservations; leave out 'all' and 'user'")
        if name == "all":
            return None
        found = await self.users.find_user(name)
        if found is None:
            raise NotFound(f"no user named {name!r}")
        return found.user_id

    async def get(self, job_id: JobId, caller: Caller) -> Response:
        """Status, queue position, estimate, and the ssh command once it is active."""
        found = await find_job(self.reservations, caller.user, job_id)
        view = await self.views.view_with_usage(found)
        if found.has_addons and not found.status.is_terminal:
            addons = await self.addons.find_addons(found.reservation_id)
            if addons is not None:
                view.users = [user.github_user for user in addons.collaborators]
                view.jupyter = addons.jupyter.status.state.value if addons.jupyter else None
        return JsonResponse(view)

    async def cancel(self, job_id: JobId, caller: Caller, body: CancelRequest | None = None) -> Response:
        """Takes effect immediately; the GPUs are free once `released_at` is set. Idempotent. A client that ran a
        command there may send its exit code, which becomes the outcome."""
        cancelled = await self.cancellation.cancel(caller.user, job_id, body.exit_code if body else None)
        return JsonResponse(await self.views.view(cancelled))

    async def extend(self, job_id: JobId, body: ExtendRequest, caller: Caller) -> Response:
        """Adds hours to an active reservation, unless that would delay a guaranteed start."""
        extended = await self.extension.extend(caller.user, job_id, body.extension_hours)
        return JsonResponse(await self.views.view(extended))

    async def prioritise(self, job_id: JobId, body: PriorityRequest, caller: Caller, request: Request) -> Response:
        """Higher priorities start first. Requests whose guaranteed start is delayed by this get the reason in their
        history."""
        request.state.audit_target = f"{job_id} ({body.priority})"
        changed = await self.prioritisation.prioritise(caller.user, job_id, body.priority)
        return JsonResponse(await self.views.view(changed))

    async def events(self, job_id: JobId, caller: Caller, request: Request, last_event_id: LastEventId = 0) -> Response:
        """Sends a `job` event with the whole reservation first and after every change, and an `event` event for each
        line of its history (after `Last-Event-ID`, if given). The stream ends with the reservation, or when the API key
        is revoked."""
        found = await find_job(self.reservations, caller.user, job_id)
        guard: RequestGuard = request.app.state.guard
        items = self.stream.watch(found.reservation_id, last_event_id)
        return EventStream(
            items,
            partial(guard.is_still_authorized, request),
            guard.reserve_stream(request),
            stopping=request.app.state.stopping,
        )
