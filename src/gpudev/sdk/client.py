"""The client for programs: `GpuDev` blocks, `AsyncGpuDev` is awaited; both offer the same."""

from collections.abc import Mapping
from typing import Unpack

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.http.routines import SyncDriver
from gpudev.sdk.reserve_options import ReserveOptions, check_options
from gpudev.sdk.resources.addons import AsyncJupyter, AsyncUsers, Jupyter, Users
from gpudev.sdk.resources.cluster import AsyncCluster, AsyncKeys, AsyncStatistics, Cluster, Keys, Statistics
from gpudev.sdk.resources.dev_servers import AsyncServer, Server
from gpudev.sdk.resources.disks import AsyncDisks, Disks
from gpudev.sdk.resources.jobs import AsyncJobs, Jobs, OnJobChange
from gpudev.sdk.resources.reservation_context import AsyncReservationContext, ContextOptions, ReservationContext
from gpudev.sdk.resources.sync_async import AsyncDriver, AsyncResource, SyncResource


class GpuDev(SyncResource):
    """Without arguments it finds the API and the key as `gpu-dev` does: environment, settings, the system on this
    machine, `gpu-dev login`. `env` stands for the environment."""

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
        """Who else may log in to a dev server."""
        self.jupyter = Jupyter(*parts)
        self.cluster = Cluster(*parts)
        self.keys = Keys(*parts)
        self.stats = Statistics(*parts)

    def reserve(
        self, *, on_change: OnJobChange | None = None, timeout: float | None = None, **options: Unpack[ReserveOptions]
    ) -> ReservationContext:
        """For `with`: reserve, wait until the dev server is ready, and release it at the end, whatever happens.
        `on_change` is told of every change on the way; after `timeout` seconds of waiting NotInTime is raised."""
        return ReservationContext(
            self._session, self._client, self._driver, ContextOptions(check_options(options), on_change, timeout)
        )

    def server(self, job_id: str, *, on_change: OnJobChange | None = None, timeout: float | None = None) -> Server:
        """A dev server that was reserved before, once it is ready. Nobody releases it but you."""
        job = self.jobs.wait(job_id, on_change=on_change, timeout=timeout)
        return Server(self._session, self._client, self._driver, job)

    def close(self) -> None:
        """Nothing more is asked with it, save that what it reserved for a block is still released. `with GpuDev() as
        client` does it at the end; a program that never does leaves nothing open."""
        self._driver.close()

    def __enter__(self) -> "GpuDev":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGpuDev(AsyncResource):
    """The same to be awaited. Use it as `async with AsyncGpuDev() as client`, or close it at the end."""

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
        """Who else may log in to a dev server."""
        self.jupyter = AsyncJupyter(*parts)
        self.cluster = AsyncCluster(*parts)
        self.keys = AsyncKeys(*parts)
        self.stats = AsyncStatistics(*parts)

    def reserve(
        self, *, on_change: OnJobChange | None = None, timeout: float | None = None, **options: Unpack[ReserveOptions]
    ) -> AsyncReservationContext:
        """For `async with`: reserve, wait until the dev server is ready, and release it at the end, whatever happens.
        `on_change` is told of every change on the way; after `timeout` seconds of waiting NotInTime is raised."""
        return AsyncReservationContext(
            self._session, self._client, self._driver, ContextOptions(check_options(options), on_change, timeout)
        )

    async def server(
        self, job_id: str, *, on_change: OnJobChange | None = None, timeout: float | None = None
    ) -> AsyncServer:
        """A dev server that was reserved before, once it is ready. Nobody releases it but you."""
        job = await self.jobs.wait(job_id, on_change=on_change, timeout=timeout)
        return AsyncServer(self._session, self._client, self._driver, job)

    def close(self) -> None:
        """Nothing more is asked with it."""
        self._driver.close()

    async def __aenter__(self) -> "AsyncGpuDev":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
