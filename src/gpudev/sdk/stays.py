"""A reservation for as long as a block of a program lasts."""

import uuid
from time import monotonic
from typing import NamedTuple

from gpudev.sdk import calls
from gpudev.sdk.awaiting import AwaitingDriver
from gpudev.sdk.blocking import BlockingDriver
from gpudev.sdk.core import Core
from gpudev.sdk.effects import Do, Routine
from gpudev.sdk.errors import ClientError, NotFound, Refused
from gpudev.sdk.following import Following, patience, wait_until_ready
from gpudev.sdk.jobs import OnChange, check_ready
from gpudev.sdk.offering import Awaiting, Blocking, Group
from gpudev.sdk.servers import AsyncServer, Server
from gpudev.sdk.session import Session
from gpudev.sdk.standing import has_ended
from gpudev.sdk.wishes import Wishes, as_request
from gpudev.wire.jobs import JobView


class Terms(NamedTuple):
    wishes: Wishes
    on_change: OnChange | None
    timeout: float | None


class _StayMethods(Group):
    _terms: Terms
    _job: JobView | None = None

    def _begin(self) -> Routine[JobView]:
        """Ready, or released again and the reason raised."""
        request = yield Do(lambda: as_request(self._session, self._terms.wishes))
        deadline = None if self._terms.timeout is None else monotonic() + self._terms.timeout
        submission = calls.submit(request, str(uuid.uuid4()))
        try:
            self._job = yield from self._core.value(submission)
            patient_for = patience(self._session.env)
            following = Following(self._core, self._job.reservation_id, patience=patient_for, deadline=deadline)
            self._job = yield from wait_until_ready(following, self._job, self._terms.on_change)
            return check_ready(self._job)
        except BaseException as reason:
            if self._job is None and not isinstance(reason, ClientError):
                # Interrupted while asking: saying it once more tells which one was made, if one was.
                self._job = yield from self._core.value(submission)
            yield from self._end(reason)
            raise

    def _end(self, reason: BaseException | None) -> Routine[None]:
        """Released. What goes wrong with that is told beside the reason, and never instead of it."""
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
            yield from self._core.value(calls.cancel(job.reservation_id))
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
        return Server(self._session, self._core, self._driver, self._perform(self._begin()))

    def __exit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        self._perform(self._end(reason))


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
        return AsyncServer(self._session, self._core, self._driver, await self._perform(self._begin()))

    async def __aexit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        await self._perform(self._end(reason))
