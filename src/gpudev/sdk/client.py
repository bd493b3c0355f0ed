"""The Python client: `GpuDev` is synchronous, `AsyncGpuDev` asynchronous, with the same methods."""

from collections.abc import Mapping
from typing import Unpack

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.http.routines import SyncDriver
from gpudev.sdk.reserve_options import ReserveOptions, check_options
from gpudev.sdk.resources.addons import AsyncJupyter, AsyncUsers, Jupyter, Users
from gpudev.sdk.resources.cluster import AsyncCluster, AsyncKeys, AsyncStatistics, Cluster, Keys, Statistics
from gpudev.sdk.resources.dev_servers import (
    AsyncReservationContext,
    AsyncServer,
    ContextOptions,
    ReservationContext,
    Server,
)
from gpudev.sdk.resources.disks import AsyncDisks, Disks
from gpudev.sdk.resources.jobs import AsyncJobs, Jobs, OnJobChange
from gpudev.sdk.resources.sync_async import AsyncDriver, AsyncResource, SyncResource


class GpuDev(SyncResource):
    """Without arguments, the API and the key are found as by `gpu-dev`: environment, settings, the system on this
    machine, `gpu-dev login`. `env` replaces `os.environ`."""

    def __init__(
        self, api_url: str | None = None, *, api_key: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        session = ClientSession(api_url, env, api_key=api_key)
        super().__init__(session, session.new_client(), SyncDriver(session.new_transport()))
        parts = (self._session, self._client, self._driver)
        self.jobs = Jobs(*parts)
        """Reservations."""
        self.disks = Disks(*parts)
        self.users = Users(*parts)
        """Collaborators of a dev server."""
        self.jupyter = Jupyter(*parts)
        self.cluster = Cluster(*parts)
        self.keys = Keys(*parts)
        self.stats = Statistics(*parts)

    def reserve(
        self, *, on_change: OnJobChange | None = None, timeout: float | None = None, **options: Unpack[ReserveOptions]
    ) -> ReservationContext:
        """For `with`: reserve, wait until the dev server is ready, and release it at the end in any case. `on_change`
        is called for every change during the wait. Raises NotInTime after `timeout` seconds of waiting."""
        return ReservationContext(
            self._session, self._client, self._driver, ContextOptions(check_options(options), on_change, timeout)
        )

    def server(self, job_id: str, *, on_change: OnJobChange | None = None, timeout: float | None = None) -> Server:
        """The dev server of an existing reservation, once it is ready. It is not released automatically."""
        job = self.jobs.wait(job_id, on_change=on_change, timeout=timeout)
        return Server(self._session, self._client, self._driver, job)

    def close(self) -> None:
        """Reject further calls; open `reserve` blocks still release their reservations. `with GpuDev() as client` calls
        it at the end. Without it, no connection stays open."""
        self._driver.close()

    def __enter__(self) -> "GpuDev":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGpuDev(AsyncResource):
    """The asynchronous client. Use it as `async with AsyncGpuDev() as client`, or close it at the end."""

    def __init__(
        self, api_url: str | None = None, *, api_key: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        session = ClientSession(api_url, env, api_key=api_key)
        super().__init__(session, session.new_client(), AsyncDriver(session.new_transport()))
        parts = (self._session, self._client, self._driver)
        self.jobs = AsyncJobs(*parts)
        """Reservations."""
        self.disks = AsyncDisks(*parts)
        self.users = AsyncUsers(*parts)
        """Collaborators of a dev server."""
        self.jupyter = AsyncJupyter(*parts)
        self.cluster = AsyncCluster(*parts)
        self.keys = AsyncKeys(*parts)
        self.stats = AsyncStatistics(*parts)

    def reserve(
        self, *, on_change: OnJobChange | None = None, timeout: float | None = None, **options: Unpack[ReserveOptions]
    ) -> AsyncReservationContext:
        """For `async with`: reserve, wait until the dev server is ready, and release it at the end in any case.
        `on_change` is called for every change during the wait. Raises NotInTime after `timeout` seconds of waiting."""
        return AsyncReservationContext(
            self._session, self._client, self._driver, ContextOptions(check_options(options), on_change, timeout)
        )

    async def server(
        self, job_id: str, *, on_change: OnJobChange | None = None, timeout: float | None = None
    ) -> AsyncServer:
        """The dev server of an existing reservation, once it is ready. It is not released automatically."""
        job = await self.jobs.wait(job_id, on_change=on_change, timeout=timeout)
        return AsyncServer(self._session, self._client, self._driver, job)

    def close(self) -> None:
        """Reject further calls and end open streams."""
        self._driver.close()

    async def __aenter__(self) -> "AsyncGpuDev":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
