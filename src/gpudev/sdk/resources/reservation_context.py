"""A reservation for as long as a block of a program lasts."""

import uuid
from time import monotonic
from typing import NamedTuple

from gpudev.sdk.client_session import Session
from gpudev.sdk.effects import Do, Routine
from gpudev.sdk.errors import ClientError, NotFound, Refused, UsageError
from gpudev.sdk.http import endpoints
from gpudev.sdk.http.api_client import Core
from gpudev.sdk.http.endpoints import Call
from gpudev.sdk.http.event_stream import Following, patience, wait_until_ready
from gpudev.sdk.http.routines import BlockingDriver
from gpudev.sdk.offering import Awaiting, Blocking, Group
from gpudev.sdk.reserve_options import Wishes, as_request
from gpudev.sdk.resources.dev_servers import AsyncServer, Server
from gpudev.sdk.resources.jobs import OnChange, check_ready
from gpudev.sdk.resources.sync_async import AwaitingDriver, to_the_end
from gpudev.sdk.standing import has_ended
from gpudev.wire.reservations import JobView


class Terms(NamedTuple):
    wishes: Wishes
    on_change: OnChange | None
    timeout: float | None


class _StayMethods(Group):
    _terms: Terms
    _submission: Call[JobView] | None = None
    """What was asked for, once it may have been heard."""
    _job: JobView | None = None
    _is_entered = False

    def _check_and_enter(self) -> None:
        if self._is_entered:
            raise UsageError("this block is open already, and has one reservation", "Call `reserve` for each block")
        self._is_entered = True

    def _begin(self) -> Routine[JobView]:
        """Ready. Whatever is raised, `_give_up` comes next."""
        request = yield Do(lambda: as_request(self._session, self._terms.wishes))
        deadline = None if self._terms.timeout is None else monotonic() + self._terms.timeout
        self._submission = endpoints.submit(request, str(uuid.uuid4()))
        self._job = yield from self._core.value(self._submission)
        patient_for = patience(self._session.env)
        following = Following(self._core, self._job.reservation_id, patience=patient_for, deadline=deadline)
        self._job = yield from wait_until_ready(following, self._job, self._terms.on_change)
        return check_ready(self._job)

    def _give_up(self, reason: BaseException) -> Routine[None]:
        if self._submission is not None and self._job is None and not isinstance(reason, ClientError):
            # Interrupted while asking: saying it once more tells which one was made, if one was.
            try:
                self._job = yield from self._core.value(self._submission)
            except ClientError as error:
                reason.add_note(f"A reservation may have been made all the same: {error.message}")
        yield from self._end(reason)

    def _end(self, reason: BaseException | None) -> Routine[None]:
        """Released. What goes wrong with that is told beside the reason, and never instead of it."""
        self._is_entered, self._submission = False, None
        try:
            yield from self._release()
        except ClientError as error:
            if reason is None:
                raise
            reason.add_note(f"The reservation could not be released: {error.message}")

    def _release(self) -> Routine[None]:
        job, self._job = self._job, None
        if job is None or has_ended(job):
            return
        try:
            yield from self._core.value(endpoints.cancel(job.reservation_id))
        except (NotFound, Refused) as error:
            if error.code not in ("conflict", "not_found"):  # it has ended by itself
                raise


class Stay(_StayMethods, Blocking):
    """`with client.reserve(…) as server`."""

    def __init__(
        self,
        session: Session,
        core: Core,
        driver: BlockingDriver,
        terms: Terms,
    ) -> None:
        super().__init__(session, core, driver)
        self._terms = terms

    def __enter__(self) -> Server:
        self._check_and_enter()
        try:
            job = self._perform(self._begin())
        except BaseException as reason:
            self._driver.run(self._give_up(reason))  # also when the client was closed meanwhile
            raise
        return Server(self._session, self._core, self._driver, job)

    def __exit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        self._driver.run(self._end(reason))


class AsyncStay(_StayMethods, Awaiting):
    """`async with client.reserve(…) as server`."""

    def __init__(
        self,
        session: Session,
        core: Core,
        driver: AwaitingDriver,
        terms: Terms,
    ) -> None:
        super().__init__(session, core, driver)
        self._terms = terms

    async def __aenter__(self) -> AsyncServer:
        self._check_and_enter()
        try:
            job = await self._perform(self._begin())
        except BaseException as reason:
            await to_the_end(self._perform(self._give_up(reason)))
            raise
        return AsyncServer(self._session, self._core, self._driver, job)

    async def __aexit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        await to_the_end(self._perform(self._end(reason)))
