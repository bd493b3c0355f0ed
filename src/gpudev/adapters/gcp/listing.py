"""Listings that are whole or are not told: every page, and no zone that did not answer.

GCP answers an aggregated list with success also when some zones could not be asked, and says so in a warning. Pages
are read in a thread, each before the next is asked for: a long listing neither holds anybody up nor is held in memory
in Google's form.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gpudev.adapters.gcp.client import GcpClient
from gpudev.adapters.gcp.errors import GcpPermissionDenied
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.resources import is_in_region
from gpudev.domain.errors import ClusterError, Unavailable

_T = TypeVar("_T")
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
