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
from gpudev.wire.reservations import ExtendRequest, JobList, JobView, PriorityRequest, SubmitRequest
from gpudev.workflows.reservation_views import ReservationViews, find_job, sees_everything
from gpudev.workflows.reservations.reservation_actions import Cancellation, Extension, Prioritisation
from gpudev.workflows.reservations.reservation_stream import ReservationStream
from gpudev.workflows.reservations.submission import Submission


@dataclass(frozen=True, slots=True)
class JobEndpoints:
    reservations: ReservationStore
    users: UserStore
    viewing: ReservationViews
    submission: Submission
    cancelling: Cancellation
    extending: Extension
    prioritising: Prioritisation
    watching: ReservationStream
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
            responses=problem_responses(401, 404, 409, 422, 503),
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

    async def submit(self, ask: SubmitRequest, caller: Caller, idempotency_key: IdempotencyKey = None) -> Response:
        """Checks and stores the request, and answers at once with id, queue position and estimate. The reservation
        starts by itself; follow it with `GET /v1/jobs/{job_id}/events`."""
        submitted = await self.submission.submit(caller.user, ask, idempotency_key)
        headers = {"Location": f"/v1/jobs/{submitted.reservation.reservation_id}"}
        if submitted.replayed:
            headers["Idempotent-Replay"] = "true"
        return JsonResponse(await self.viewing.view(submitted.reservation), 202, headers)

    async def list_jobs(
        self,
        *,
        caller: Caller,
        statuses: Statuses = [],  # noqa: B006 - never changed, and FastAPI copies it
        gpu_type: GpuTypeFilter = None,
        created_after: CreatedAfter = None,
        created_before: CreatedBefore = None,
        cursor: Cursor = None,
        limit: Limit = 50,
        everybody: AllUsers = False,
        of_user: OwnerFilter = None,
    ) -> Response:
        """Newest first. A full page has a `next_cursor` for the next one."""
        found = await self.reservations.list_jobs(
            JobQuery(
                user_id=await self._resolve_owner(caller.user, "all" if everybody else of_user),
                statuses=tuple(statuses),
                gpu_type=gpu_type,
                created_after=created_after,
                created_before=created_before,
                before_seq=decode_cursor(cursor),
                # One more than asked for tells whether there is a next page.
                limit=limit + 1,
            )
        )
        page = found[:limit]
        more = encode_cursor(page[-1].seq) if len(found) > limit else None
        return JsonResponse(JobList(jobs=await self.viewing.views(page), next_cursor=more))

    async def _resolve_owner(self, caller: User, name: str | None) -> UserId | None:
        """None: everybody's."""
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
        """Status, queue position and estimate, and the ssh command once it is active."""
        found = await find_job(self.reservations, caller.user, job_id)
        view = await self.viewing.view_with_usage(found)
        if found.has_addons and not found.status.is_terminal:
            interior = await self.addons.find_addons(found.reservation_id)
            if interior is not None:
                view.users = [user.github_user for user in interior.collaborators]
                view.jupyter = interior.jupyter.status.state.value if interior.jupyter else None
        return JsonResponse(view)

    async def cancel(self, job_id: JobId, caller: Caller) -> Response:
        """Cancelled when this answers; the GPUs are free once `released_at` is set. Idempotent."""
        cancelled = await self.cancelling.cancel(caller.user, job_id)
        return JsonResponse(await self.viewing.view(cancelled))

    async def extend(self, job_id: JobId, ask: ExtendRequest, caller: Caller) -> Response:
        """Adds hours to an active reservation, as long as no guaranteed start is delayed."""
        extended = await self.extending.extend(caller.user, job_id, ask.extension_hours)
        return JsonResponse(await self.viewing.view(extended))

    async def prioritise(self, job_id: JobId, ask: PriorityRequest, caller: Caller, request: Request) -> Response:
        """Higher priorities start first. Requests whose guaranteed start is delayed get the reason in their history."""
        request.state.audit_target = f"{job_id} ({ask.priority})"
        changed = await self.prioritising.prioritise(caller.user, job_id, ask.priority)
        return JsonResponse(await self.viewing.view(changed))

    async def events(self, job_id: JobId, caller: Caller, request: Request, last_event_id: LastEventId = 0) -> Response:
        """A `job` event with the whole reservation comes first and after every change; an `event` event for each
        line of its history (after `Last-Event-ID`, if given). The stream ends when the reservation has ended, and when
        the key that asked for it is revoked."""
        found = await find_job(self.reservations, caller.user, job_id)
        guard: RequestGuard = request.app.state.guard
        items = self.watching.watch(found.reservation_id, last_event_id)
        return EventStream(items, partial(guard.is_still_authorized, request), guard.reserve_stream(request))
