"""Calls to Google Cloud: in a few threads, with timeouts and retries; complete listings.

Google's client is synchronous, and its import takes seconds, so it is imported in a thread when a cloud is started. Its
own retries are off, because they would sleep in a thread. After a timeout the thread may wait until the socket's
timeout; what the call still does then may be repeated safely.

A listing is complete or it raises: every page, and every zone. GCP answers an aggregated list with success also when
some zones could not be reached, and reports that only in a warning. Pages are read in a thread, each before the next
one is requested: a long listing blocks nothing and is never kept whole in Google's form.
"""

import asyncio
import importlib
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

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
    """Timeouts, attempts and pauses. Not settings: these values fit any project."""

    call_timeout: timedelta = timedelta(seconds=30)
    """Of one attempt of one call."""
    attempts: int = 5
    """Of one call."""
    operation_patience: timedelta = timedelta(minutes=2)
    """How long to wait for an operation before the caller must try again later."""
    first_wait: timedelta = timedelta(milliseconds=500)
    """Before the second attempt; doubled before each further one, and shortened at random."""
    longest_wait: timedelta = timedelta(seconds=8)
    poll_every: timedelta = timedelta(milliseconds=300)
    """First interval between two polls of an operation; it grows up to `slowest_poll`."""
    slowest_poll: timedelta = timedelta(seconds=3)


class GcpClient:
    def __init__(self, settings: GcpSettings, pace: CallPace, endpoint: str = "") -> None:
        """`endpoint`: an address other than Google's. Credentials are never sent there."""
        self.settings = settings
        self.pace = pace
        self._endpoint = endpoint
        self.project = settings.project
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gcp")
        self._thread_slots = asyncio.Semaphore(_THREADS)
        self._clients: dict[str, Any] = {}
        self.messages: Any = None
        """Google's module with its message types."""

    async def start(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._connect)
        except ImportError as error:
            raise ClusterError('the GCP library is missing: pip install "gpu-dev[server,gcp]"') from error

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.transport.close()
        self._clients.clear()

    def service_client(self, name: str) -> Any:
        return self._clients[name]

    def retry_delay(self, attempt: int) -> float:
        """Seconds to wait after the n-th failure (the first is 1)."""
        pause = backoff(attempt, self.pace.first_wait, self.pace.longest_wait, jitter=random.uniform(0.5, 1.0))
        return pause.total_seconds()

    async def call(self, permission: Permission, send: Callable[..., Any], request: Any, kind: str) -> Any:
        """Send one request, with retries while GCP is unavailable. `permission`: what an administrator grants for it.
        `kind`: GCP's name for the response type. A request that changes something must have a request id."""
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
        """For long work without I/O."""
        async with self._thread_slots:
            return await asyncio.get_running_loop().run_in_executor(self._threads, do, *arguments)

    async def _call_once(self, permission: Permission, send: Callable[..., Any], request: Any, kind: str) -> Any:
        async with self._thread_slots:
            try:
                async with asyncio.timeout(self.pace.call_timeout.total_seconds()):
                    response = await asyncio.get_running_loop().run_in_executor(
                        self._threads, self._send, permission, send, request
                    )
            except TimeoutError as error:
                raise Unavailable(f"GCP did not answer {permission} within {self.pace.call_timeout}") from error
        if response.kind != kind:
            # The client accepts any JSON object; one of another kind is not an empty response.
            raise Unavailable(f"invalid GCP response to {permission}: {response.kind[:80]!r} (expected {kind})")
        return response

    def _send(self, permission: Permission, send: Callable[..., Any], request: Any) -> Any:
        """Runs in a thread."""
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import GoogleAuthError
        from google.protobuf.json_format import ParseError
        from requests.exceptions import RequestException

        try:
            response = send(request=request, retry=None, timeout=self.pace.call_timeout.total_seconds())
            return next(iter(response.pages)) if hasattr(response, "pages") else response
        except GoogleAPICallError as error:
            raise error_from_response(error, permission) from error
        except GoogleAuthError as error:
            raise _credentials_failed(error, permission) from error
        except RequestException as error:
            raise Unavailable(f"GCP could not be reached ({permission}): {error}") from error
        except (ParseError, ValueError, TypeError, AttributeError) as error:
            # The client takes every response for the API's and fails on those of a proxy.
            raise Unavailable(f"unreadable GCP response to {permission}: {error}") from error

    def _connect(self) -> None:
        """Runs in a thread: the first import takes seconds."""
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
            # Real credentials are sent to Google only.
            if not self.project:
                raise ClusterError("GPU_DEV_GCP_PROJECT is not set, and another endpoint than Google's is")
            return google.auth.credentials.AnonymousCredentials()
        try:
            credentials, project = google.auth.default(scopes=[_SCOPE])
        except google.auth.exceptions.GoogleAuthError as error:
            raise _credentials_failed(error, "credentials") from error
        self.project = self.project or project or ""
        if not self.project:
            raise ClusterError("no GCP project found: set GPU_DEV_GCP_PROJECT")
        return credentials


def _credentials_failed(error: Any, permission: str) -> GpuDevError:
    from google.auth.exceptions import TransportError

    if isinstance(error, TransportError) or getattr(error, "retryable", False):
        return Unavailable(f"GCP's credentials could not be renewed ({permission}): {error}")
    return ClusterError(f"GCP's credentials cannot be used ({permission}): {error}")


# Listings.


_PAGE_SIZE = 500
"""The most that GCP returns in one page."""
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
    """Name of a zone's part, in listings with one part per zone and region; None: the listing has no such parts."""


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
    """What `read` returns for every resource in our region that matches `filter_text`; None: it is left out."""
    send = getattr(client.service_client(listing.client), listing.method)
    request_type = getattr(client.messages, listing.request)
    region, found = client.settings.region, list[_T]()
    token, tokens = "", set[str]()
    while True:
        request = request_type(project=client.project, max_results=_PAGE_SIZE)
        if filter_text:
            request.filter = filter_text
        if token:
            request.page_token = token
        try:
            response = await client.call(listing.permission, send, request, listing.kind)
        except GcpPermissionDenied:
            raise
        except ClusterError as error:
            raise Unavailable(f"GCP listing {listing.permission} is incomplete: {error}") from error
        found += await client.run_in_thread(_read_page, response, listing, region, read)
        token = response.next_page_token
        if not token:
            return found
        if token in tokens:
            raise Unavailable(f"GCP listing {listing.permission} repeats a page token")
        tokens.add(token)


def _read_page(response: Any, listing: GcpListing, region: str, read: Callable[[Any], _T | None]) -> list[_T]:
    page = type(response).pb(response)  # the raw message, which reads many times faster
    # A warning for the whole page need not name the zones that are missing.
    _check_complete(page.warning, "the project", listing)
    items = page.items if listing.key is None else _items_in_region(page, listing, listing.key, region)
    return [resource for item in items if (resource := read(item)) is not None]


def _items_in_region(page: Any, listing: GcpListing, key: str, region: str) -> Iterator[Any]:
    missing = [scope for scope in page.unreachables if is_in_region(scope, region)]
    if missing:
        raise Unavailable(f"GCP could not reach all zones for {listing.permission}: {', '.join(missing)}")
    for scope, scoped in page.items.items():
        if is_in_region(scope, region):
            _check_complete(scoped.warning, scope, listing)
            yield from getattr(scoped, key)


def _check_complete(warning: Any, scope: str, listing: GcpListing) -> None:
    if warning.code and warning.code not in _HARMLESS_WARNINGS:
        raise Unavailable(
            f"GCP listing {listing.permission} is incomplete for {scope} ({warning.code}): {warning.message}"
        )


# Errors: the cloud rejected a request, or it was unavailable. Only a response in the Compute API's own format is the
# cloud's. A "404" from a proxy does not prove that a resource is gone.


class GcpNotFound(ClusterError):
    """The cloud confirms that the resource does not exist."""


class GcpAlreadyExists(ClusterError):
    """A resource of this name exists."""


class GcpPermissionDenied(ClusterError):
    """We lack a permission, or GCP does not know who we are."""


class GcpConditionNotMet(ClusterError):
    """The resource changed since it was read; the request had no effect."""


_ERROR_BY_REASON: dict[str, type[GpuDevError]] = {
    "NOT_FOUND": GcpNotFound,
    "RESOURCE_NOT_FOUND": GcpNotFound,
    "ALREADY_EXISTS": GcpAlreadyExists,
    "RESOURCE_ALREADY_EXISTS": GcpAlreadyExists,
    "CONDITION_NOT_MET": GcpConditionNotMet,
    # Temporary. The first two have status 403.
    "RATE_LIMIT_EXCEEDED": Unavailable,
    "USER_RATE_LIMIT_EXCEEDED": Unavailable,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Unavailable,
    "OPERATION_RATE_EXCEEDED": Unavailable,
    "RESOURCE_NOT_READY": Unavailable,
    "INTERNAL_ERROR": Unavailable,
    "BACKEND_ERROR": Unavailable,
}
_ERROR_BY_STATUS: dict[int, type[GpuDevError]] = {
    401: GcpPermissionDenied,
    403: GcpPermissionDenied,
    404: GcpNotFound,
    408: Unavailable,
    409: Unavailable,  # another operation is running; "already exists" is recognised by its reason
    412: GcpConditionNotMet,
    429: Unavailable,
}
_NO_PROJECT = re.compile(r"resource 'projects/[^/']+' was not found", re.IGNORECASE)


def error_from_response(error: Any, permission: str) -> GpuDevError:
    """`error` is a GoogleAPICallError."""
    parsed = _parse_error(error.response)
    if parsed is None:
        return Unavailable(f"GCP could not be reached ({permission}): {str(error)[:300]}")
    status, reason, message = parsed
    return _error_for(status, reason, message, permission)


def error_from_operation(operation: Any, permission: str) -> GpuDevError | None:
    """None: it has not failed."""
    errors = list(operation.error.errors)
    status = operation.http_error_status_code
    if not errors and status < 400:
        return None
    code = errors[0].code if errors else ""
    message = "; ".join(error.message for error in errors) or operation.http_error_message
    return _error_for(status, code, message, permission)


def _error_for(status: int, reason: str, message: str, permission: str) -> GpuDevError:
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", reason).upper()
    kind = (
        _ERROR_BY_REASON.get(code) or _ERROR_BY_STATUS.get(status) or (Unavailable if status >= 500 else ClusterError)
    )
    if kind is GcpNotFound and _NO_PROJECT.search(message):
        kind = ClusterError  # a missing project does not prove that the resource is gone
    if kind is Unavailable:
        return Unavailable(f"GCP cannot answer {permission} now ({status} {reason}): {message}")
    return kind(f"GCP rejects {permission} ({status} {reason}): {message}")


def _parse_error(response: Any) -> tuple[int, str, str] | None:
    """Status, reason and message; None: the response is not in the API's own format."""
    if response is None:
        return None
    try:
        error = response.json()["error"]
        reasons = error.get("errors") or [{}]
        return int(error["code"]), str(reasons[0].get("reason", "")), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
