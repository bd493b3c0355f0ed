"""Calls of Google's client without holding anybody up: in a few threads, with time-outs, tried again when that helps.

The client is synchronous, and importing it takes seconds: it is imported in a thread when a cloud is started. Its own
retries are off, since they would sleep in a thread. A call that is given up on may leave its thread waiting until the
socket's time-out; whatever it still does may be repeated. Decides nothing about disks.
"""

import asyncio
import importlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from gpudev.adapters.gcp import errors
from gpudev.adapters.gcp.errors import GcpPermissionDenied
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.resources import is_in_region
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.settings import GcpSettings

_T = TypeVar("_T")
_THREADS = 8
_SCOPE = "https://www.googleapis.com/auth/compute"


@dataclass(frozen=True, slots=True)
class CallPace:
    """How long GCP is waited for, and how soon it is asked again. Not a setting: these fit any project."""

    call_timeout: timedelta = timedelta(seconds=30)
    """Of one attempt of one call."""
    attempts: int = 5
    """Of one call."""
    operation_patience: timedelta = timedelta(minutes=2)
    """How long a change is waited for before its caller must ask again later."""
    first_wait: timedelta = timedelta(milliseconds=500)
    """Before the second attempt; doubled before each further one, and less by chance."""
    longest_wait: timedelta = timedelta(seconds=8)
    poll_every: timedelta = timedelta(milliseconds=300)
    """What goes on is looked at so often at first, then more rarely."""
    slowest_poll: timedelta = timedelta(seconds=3)


class GcpClient:
    def __init__(self, settings: GcpSettings, pace: CallPace, endpoint: str = "") -> None:
        """`endpoint`: another address than Google's. No credentials are ever sent there."""
        self.settings = settings
        self.pace = pace
        self._endpoint = endpoint
        self.project = settings.project
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gcp")
        self._thread_slots = asyncio.Semaphore(_THREADS)
        self._clients: dict[str, Any] = {}
        self.messages: Any = None
        """Google's module, with the types of its messages."""

    async def start(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._connect)
        except ImportError as error:
            raise ClusterError('GCP needs more packages: pip install "gpu-dev[server,gcp]"') from error

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.transport.close()
        self._clients.clear()

    def service_client(self, name: str) -> Any:
        return self._clients[name]

    def retry_delay(self, attempt: int) -> float:
        """How long to wait after the n-th failure (the first is 1), in seconds."""
        pause = backoff(attempt, self.pace.first_wait, self.pace.longest_wait, jitter=random.uniform(0.5, 1.0))
        return pause.total_seconds()

    async def call(self, permission: Permission, send: Callable[..., Any], request: Any, kind: str) -> Any:
        """One request, tried again while it cannot be answered. `permission` is what an administrator would grant
        for it, `kind` what GCP calls the answer. A request that changes something must carry a request id."""
        attempt = 1
        while True:
            try:
                return await self._call_once(permission, send, request, kind)
            except Unavailable:
                if attempt >= self.pace.attempts:
                    raise
            await asyncio.sleep(self.retry_delay(attempt))
            attempt += 1

    async def run_in_thread(self, do: Callable[..., _T], *arguments: Any) -> _T:
        """In a thread: for what takes long without waiting for anybody."""
        async with self._thread_slots:
            return await asyncio.get_running_loop().run_in_executor(self._threads, do, *arguments)

    async def _call_once(self, permission: Permission, send: Callable[..., Any], request: Any, kind: str) -> Any:
        async with self._thread_slots:
            try:
                async with asyncio.timeout(self.pace.call_timeout.total_seconds()):
                    answer = await asyncio.get_running_loop().run_in_executor(
                        self._threads, self._send, permission, send, request
                    )
            except TimeoutError as error:
                raise Unavailable(f"GCP did not answer in {self.pace.call_timeout} ({permission}).") from error
        if answer.kind != kind:
            # Any JSON object would do for the client: one that is not of this kind is no empty answer.
            raise Unavailable(f"GCP's answer ({permission}) is no {kind} but {answer.kind[:80]!r}.")
        return answer

    def _send(self, permission: Permission, send: Callable[..., Any], request: Any) -> Any:
        """In a thread."""
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import GoogleAuthError
        from google.protobuf.json_format import ParseError
        from requests.exceptions import RequestException

        try:
            answer = send(request=request, retry=None, timeout=self.pace.call_timeout.total_seconds())
            return next(iter(answer.pages)) if hasattr(answer, "pages") else answer
        except GoogleAPICallError as error:
            raise errors.error_from_response(error, permission) from error
        except GoogleAuthError as error:
            raise _credentials_failed(error, permission) from error
        except RequestException as error:
            raise Unavailable(f"GCP could not be reached ({permission}): {error}") from error
        except (ParseError, ValueError, TypeError, AttributeError) as error:
            # The client takes every answer for the API's and stumbles over what a proxy made.
            raise Unavailable(f"GCP's answer cannot be read ({permission}): {error}") from error

    def _connect(self) -> None:
        """In a thread: seconds of importing the first time."""
        self.messages = importlib.import_module("google.cloud.compute_v1")
        credentials = self._credentials()
        options = {"api_endpoint": self._endpoint} if self._endpoint else {}
        for name in ("Disks", "Snapshots", "InstanceGroupManagers", "ZoneOperations", "GlobalOperations"):
            client_type = getattr(self.messages, f"{name}Client")
            self._clients[name] = client_type(credentials=credentials, client_options=options)

    def _credentials(self) -> Any:
        import google.auth
        import google.auth.credentials

        if self._endpoint:
            # Real credentials are for Google alone.
            if not self.project:
                raise ClusterError("GPU_DEV_GCP_PROJECT must be set where there is another endpoint.")
            return google.auth.credentials.AnonymousCredentials()
        try:
            credentials, project = google.auth.default(scopes=[_SCOPE])
        except google.auth.exceptions.GoogleAuthError as error:
            raise _credentials_failed(error, "credentials") from error
        self.project = self.project or project or ""
        if not self.project:
            raise ClusterError("No GCP project: set GPU_DEV_GCP_PROJECT.")
        return credentials


def _credentials_failed(error: Any, permission: str) -> GpuDevError:
    from google.auth.exceptions import TransportError

    if isinstance(error, TransportError) or getattr(error, "retryable", False):
        return Unavailable(f"GCP's credentials could not be renewed ({permission}): {error}")
    return ClusterError(f"GCP's credentials do not serve ({permission}): {error}")


# Listings that are whole or are not told: every page, and no zone that did not answer.
#
# GCP answers an aggregated list with success also when some zones could not be asked, and says so in a warning. Pages
# are read in a thread, each before the next is asked for: a long listing neither holds anybody up nor is held in memory
# in Google's form.


_PAGE_SIZE = 500
"""The most that GCP puts on a page."""
_HARMLESS_WARNINGS = frozenset(
    {"NO_RESULTS_ON_PAGE", "DEPRECATED_RESOURCE_USED", "DEPRECATED_TYPE_USED", "EXPERIMENTAL_TYPE_USED"}
)
"""Any other warning may mean that something is missing."""


@dataclass(frozen=True, slots=True)
class GcpListing:
    permission: Permission
    client: str
    method: str
    request: str
    kind: str
    key: str | None = None
    """What a zone's part is called, where a listing has one for each zone and region."""


GROUP_LISTING = GcpListing(
    Permission.LIST_GROUPS,
    "InstanceGroupManagers",
    "aggregated_list",
    "AggregatedListInstanceGroupManagersRequest",
    "compute#instanceGroupManagerAggregatedList",
    "instance_group_managers",
)
DISK_LISTING = GcpListing(
    Permission.LIST_DISKS,
    "Disks",
    "aggregated_list",
    "AggregatedListDisksRequest",
    "compute#diskAggregatedList",
    "disks",
)
SNAPSHOT_LISTING = GcpListing(
    Permission.LIST_SNAPSHOTS, "Snapshots", "list", "ListSnapshotsRequest", "compute#snapshotList"
)


async def list_resources(
    client: GcpClient, listing: GcpListing, read: Callable[[Any], _T | None], *, filter_text: str = ""
) -> list[_T]:
    """What `read` makes of everything that fits the filter `asking`, in our region. None: it is none of ours."""
    send = getattr(client.service_client(listing.client), listing.method)
    request_type = getattr(client.messages, listing.request)
    region, found = client.settings.region, list[_T]()
    token, seen = "", set[str]()
    while True:
        request = request_type(project=client.project, max_results=_PAGE_SIZE)
        if filter_text:
            request.filter = filter_text
        if token:
            request.page_token = token
        try:
            answer = await client.call(listing.permission, send, request, listing.kind)
        except GcpPermissionDenied:
            raise
        except ClusterError as error:
            raise Unavailable(f"GCP's listing ({listing.permission}) broke off: {error}") from error
        found += await client.run_in_thread(_read_page, answer, listing, region, read)
        token = answer.next_page_token
        if not token:
            return found
        if token in seen:
            raise Unavailable(f"GCP's listing ({listing.permission}) goes round in circles.")
        seen.add(token)


def _read_page(answer: Any, listing: GcpListing, region: str, read: Callable[[Any], _T | None]) -> list[_T]:
    page = type(answer).pb(answer)  # the raw message, which reads many times faster
    # A warning for the whole page need not name the zones that are missing.
    _check_complete(page.warning, "the project", listing)
    items = page.items if listing.key is None else _items_in_region(page, listing, listing.key, region)
    return [ours for item in items if (ours := read(item)) is not None]


def _items_in_region(page: Any, listing: GcpListing, key: str, region: str) -> Iterator[Any]:
    missing = [scope for scope in page.unreachables if is_in_region(scope, region)]
    if missing:
        raise Unavailable(f"GCP could not ask all zones ({listing.permission}): {', '.join(missing)}.")
    for scope, scoped in page.items.items():
        if is_in_region(scope, region):
            _check_complete(scoped.warning, scope, listing)
            yield from getattr(scoped, key)


def _check_complete(warning: Any, scope: str, listing: GcpListing) -> None:
    if warning.code and warning.code not in _HARMLESS_WARNINGS:
        raise Unavailable(
            f"GCP's answer about {scope} is incomplete ({listing.permission}, {warning.code}): {warning.message}"
        )
