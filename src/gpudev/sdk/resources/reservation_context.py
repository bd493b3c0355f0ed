"""A reservation for the duration of a `with` block."""

import uuid
from time import monotonic
from typing import NamedTuple

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.errors import ClientError, UsageError
from gpudev.sdk.http import endpoints
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiCall
from gpudev.sdk.http.event_stream import JobWatch, check_ready, has_ended, read_patience, wait_until_ready
from gpudev.sdk.http.routines import Routine, RunFunction, SyncDriver
from gpudev.sdk.reserve_options import ReserveOptions, request_from_options
from gpudev.sdk.resources.dev_servers import AsyncServer, Server
from gpudev.sdk.resources.jobs import OnJobChange
from gpudev.sdk.resources.sync_async import AsyncDriver, AsyncResource, Resource, SyncResource, run_to_completion
from gpudev.wire.reservations import JobView


class ContextOptions(NamedTuple):
    reserve_options: ReserveOptions
    on_change: OnJobChange | None
    timeout: float | None


class _ReservationContextMethods(Resource):
    _options: ContextOptions
    _submission: ApiCall[JobView] | None = None
    """The submit request, once it may have been sent."""
    _job: JobView | None = None
    _is_entered = False

    def _check_and_enter(self) -> None:
        if self._is_entered:
            raise UsageError("this block is already entered", "Call `reserve` once per block")
        self._is_entered = True

    def _start(self) -> Routine[JobView]:
        """Submit and wait until ready. After any exception the caller runs `_abort`."""
        request = yield RunFunction(lambda: request_from_options(self._session, self._options.reserve_options))
        deadline = None if self._options.timeout is None else monotonic() + self._options.timeout
        self._submission = endpoints.submit_job(request, str(uuid.uuid4()))
        self._job = yield from self._client.fetch_value(self._submission)
        patience = read_patience(self._session.env)
        watch = JobWatch(self._client, self._job.reservation_id, patience=patience, deadline=deadline)
        self._job = yield from wait_until_ready(watch, self._job, self._options.on_change)
        return check_ready(self._job)

    def _abort(self, reason: BaseException) -> Routine[None]:
        if self._submission is not None and self._job is None and not isinstance(reason, ClientError):
            # Interrupted during the submit: repeating it returns the reservation, if one was created.
            try:
                self._job = yield from self._client.fetch_value(self._submission)
            except ClientError as error:
                reason.add_note(f"A reservation may have been created: {error.message}")
        yield from self._finish(reason)

    def _finish(self, reason: BaseException | None) -> Routine[None]:
        """Release. A failure is added to `reason` as a note and does not replace it."""
        self._is_entered, self._submission = False, None
        try:
            yield from self._release()
        except ClientError as error:
            if reason is None:
                raise
            reason.add_note(f"The reservation could not be released: {error.message}")

    def _release(self) -> Routine[None]:
        job, self._job = self._job, None
        if job is not None and not has_ended(job):
            yield from self._client.release_job(job.reservation_id)


class ReservationContext(_ReservationContextMethods, SyncResource):
    """`with client.reserve(…) as server`."""

    def __init__(
        self,
        session: ClientSession,
        client: ApiClient,
        driver: SyncDriver,
        options: ContextOptions,
    ) -> None:
        super().__init__(session, client, driver)
        self._options = options

    def __enter__(self) -> Server:
        self._check_and_enter()
        try:
            job = self._perform(self._start())
        except BaseException as reason:
            self._driver.run(self._abort(reason))  # works even if the client is closed
            raise
        return Server(self._session, self._client, self._driver, job)

    def __exit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        self._driver.run(self._finish(reason))


class AsyncReservationContext(_ReservationContextMethods, AsyncResource):
    """`async with client.reserve(…) as server`."""

    def __init__(
        self,
        session: ClientSession,
        client: ApiClient,
        driver: AsyncDriver,
        options: ContextOptions,
    ) -> None:
        super().__init__(session, client, driver)
        self._options = options

    async def __aenter__(self) -> AsyncServer:
        self._check_and_enter()
        try:
            job = await self._perform(self._start())
        except BaseException as reason:
            await run_to_completion(self._perform(self._abort(reason)))
            raise
        return AsyncServer(self._session, self._client, self._driver, job)

    async def __aexit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        await run_to_completion(self._perform(self._finish(reason)))
