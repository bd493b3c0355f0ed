"""Reservations."""

from collections.abc import Callable, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, Unpack

from gpudev.domain.backoff import growing_pauses
from gpudev.domain.reservations.lifecycle import LIVE
from gpudev.sdk.errors import NotInTime
from gpudev.sdk.http import endpoints, event_stream, session_endpoints
from gpudev.sdk.http.event_stream import JobWatch, check_ready, read_patience, wait_until_ready
from gpudev.sdk.http.routines import Pause, Routine, RunFunction
from gpudev.sdk.reserve_options import ReserveOptions, check_options, request_from_options
from gpudev.sdk.resources.sync_async import AsyncResource, ItemSource, Resource, SyncResource, api_method, api_stream
from gpudev.wire.reservations import ExtendRequest, JobEvent, JobView, PriorityRequest
from gpudev.wire.sessions import ProxyToken

OnJobChange = Callable[[JobView], object]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0


class JobMethods(Resource):
    """`client.jobs`. A job id may be shortened to its first 4 or more digits."""

    @api_method
    def submit(self, *, idempotency_key: str | None = None, **options: Unpack[ReserveOptions]) -> Routine[JobView]:
        """Submit a reservation and return at once, with its queue position. It is created once, however often the
        connection breaks; pass an `idempotency_key` to create it once over several runs of a program."""
        request = yield RunFunction(lambda: request_from_options(self._session, check_options(options)))
        return (yield from self._client.fetch_value(endpoints.submit_job(request, idempotency_key)))

    @api_method
    def get(self, job_id: str) -> Routine[JobView]:
        """The current state of one reservation."""
        return self._client.fetch_value(endpoints.get_job(job_id))

    @api_method
    def wait(
        self, job_id: str, *, on_change: OnJobChange | None = None, timeout: float | None = None
    ) -> Routine[JobView]:
        """Wait until the dev server is ready. `on_change` is called for every change (queue position, expected start,
        steps). Raises ReservationEnded if it ends instead, NotInTime after `timeout` seconds; the reservation itself is
        not changed."""
        first = yield from self._client.fetch_value(endpoints.get_job(job_id))
        job = yield from wait_until_ready(self._watch(first, timeout), first, on_change)
        return check_ready(job)

    @api_method
    def cancel(self, job_id: str) -> Routine[JobView]:
        """Cancel a reservation and end everything that runs there. Disks are kept."""
        return self._client.fetch_value(endpoints.cancel_job(job_id))

    @api_method
    def wait_until_released(self, job_id: str, *, timeout: float | None = None) -> Routine[JobView]:
        """Wait until an ended reservation is released: its GPUs and its disk are free again. Raises NotInTime after
        `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        pauses = growing_pauses(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5)
        while True:
            job = yield from self._client.fetch_value(endpoints.get_job(job_id))
            if job.released_at is not None:
                return job
            if deadline is not None and monotonic() > deadline:
                raise NotInTime(f"reservation {job.reservation_id} was not released in time")
            yield Pause(next(pauses))

    @api_method
    def extend(self, job_id: str, hours: float) -> Routine[JobView]:
        """Extend a reservation by this many hours."""
        return self._client.fetch_value(endpoints.extend_job(job_id, ExtendRequest(extension_hours=float(hours))))

    @api_method
    def prioritise(self, job_id: str, priority: int) -> Routine[JobView]:
        """Set the priority (operators). Higher priorities start first; the default is 0."""
        return self._client.fetch_value(endpoints.prioritise_job(job_id, PriorityRequest(priority=priority)))

    @api_method
    def events(self, job_id: str) -> Routine[Sequence[JobEvent]]:
        """Its history until now, oldest first."""
        job = yield from self._client.fetch_value(endpoints.get_job(job_id))
        return (yield from event_stream.read_history(self._client, job))

    @api_stream
    def follow(self, job_id: str) -> ItemSource[JobEvent]:
        """Its history, event by event, until it has ended."""
        return _FollowedHistory(self, job_id)

    @api_method
    def proxy_token(self, job_id: str) -> Routine[ProxyToken]:
        """A token that opens an ssh tunnel through HTTPS, valid for one minute."""
        return self._client.fetch_value(session_endpoints.create_proxy_token(job_id))

    @api_method
    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        gpu_type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 1000,
        everybody: bool = False,
    ) -> Routine[Sequence[JobView]]:
        """Your reservations, newest first. Without `status`: the live ones; with an empty sequence: all.
        `everybody`: of all users (operators)."""
        statuses = [status] if isinstance(status, str) else status
        query: dict[str, Any] = {"status": sorted(LIVE) if statuses is None else [str(each) for each in statuses]}
        query |= {"gpu_type": gpu_type} if gpu_type else {}
        query |= {"created_after": created_after.isoformat()} if created_after else {}
        query |= {"created_before": created_before.isoformat()} if created_before else {}
        query |= {"all": "true"} if everybody else {}
        if limit < 1:
            return []
        return [job for page in (yield from self._client.list_job_pages(query, limit)) for job in page.value.jobs]

    def _watch(self, job: JobView, timeout: float | None) -> JobWatch:
        deadline = None if timeout is None else monotonic() + timeout
        patience = read_patience(self._session.env)
        return JobWatch(
            self._client, job.reservation_id, patience=patience, known_version=job.version, deadline=deadline
        )


class Jobs(JobMethods, SyncResource):
    pass


class AsyncJobs(JobMethods, AsyncResource):
    pass


class _FollowedHistory:
    """The history of a reservation, which is fetched with the first item."""

    def __init__(self, jobs: JobMethods, job_id: str) -> None:
        self._jobs = jobs
        self._job_id = job_id
        self._history: event_stream.JobHistory | None = None

    def next(self) -> Routine[JobEvent | None]:
        if self._history is None:
            job = yield from self._jobs._client.fetch_value(endpoints.get_job(self._job_id))
            self._history = event_stream.JobHistory(self._jobs._client, job, follow=True)
        return (yield from self._history.next())

    def close(self) -> Routine[None]:
        if self._history is not None:
            yield from self._history.close()
