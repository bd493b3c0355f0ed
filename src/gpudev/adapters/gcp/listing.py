"""Listings that are whole or are not told: every page, and no zone that did not answer.

GCP answers an aggregated list with success also when some zones could not be asked, and says so in a warning. Pages
are read in a thread, each before the next is asked for: a long listing neither holds anybody up nor is held in memory
in Google's form.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gpudev.adapters.gcp.client import Caller
from gpudev.adapters.gcp.errors import NotAllowed
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.resources import is_in_region
from gpudev.domain.errors import ClusterError, Unavailable

_T = TypeVar("_T")
_PAGE = 500
"""The most that GCP puts on a page."""
_HARMLESS = frozenset(
    {"NO_RESULTS_ON_PAGE", "DEPRECATED_RESOURCE_USED", "DEPRECATED_TYPE_USED", "EXPERIMENTAL_TYPE_USED"}
)
"""Any other warning may mean that something is missing."""


@dataclass(frozen=True, slots=True)
class Listing:
    permission: Permission
    client: str
    method: str
    request: str
    kind: str
    key: str | None = None
    """What a zone's part is called, where a listing has one for each zone and region."""


GROUPS = Listing(
    Permission.LIST_GROUPS,
    "InstanceGroupManagers",
    "aggregated_list",
    "AggregatedListInstanceGroupManagersRequest",
    "compute#instanceGroupManagerAggregatedList",
    "instance_group_managers",
)
DISKS = Listing(
    Permission.LIST_DISKS,
    "Disks",
    "aggregated_list",
    "AggregatedListDisksRequest",
    "compute#diskAggregatedList",
    "disks",
)
SNAPSHOTS = Listing(Permission.LIST_SNAPSHOTS, "Snapshots", "list", "ListSnapshotsRequest", "compute#snapshotList")


async def listed(caller: Caller, listing: Listing, read: Callable[[Any], _T | None], *, asking: str = "") -> list[_T]:
    """What `read` makes of everything that fits the filter `asking`, in our region. None: it is none of ours."""
    send = getattr(caller.client(listing.client), listing.method)
    request_type = getattr(caller.messages, listing.request)
    region, found = caller.settings.region, list[_T]()
    token, seen = "", set[str]()
    while True:
        request = request_type(project=caller.project, max_results=_PAGE)
        if asking:
            request.filter = asking
        if token:
            request.page_token = token
        try:
            answer = await caller.call(listing.permission, send, request, listing.kind)
        except NotAllowed:
            raise
        except ClusterError as error:
            raise Unavailable(f"GCP's listing ({listing.permission}) broke off: {error}") from error
        found += await caller.work(_read_page, answer, listing, region, read)
        token = answer.next_page_token
        if not token:
            return found
        if token in seen:
            raise Unavailable(f"GCP's listing ({listing.permission}) goes round in circles.")
        seen.add(token)


def _read_page(answer: Any, listing: Listing, region: str, read: Callable[[Any], _T | None]) -> list[_T]:
    page = type(answer).pb(answer)  # the raw message, which reads many times faster
    # A warning for the whole page need not name the zones that are missing.
    _refuse_gaps(page.warning, "the project", listing)
    items = page.items if listing.key is None else _all_scopes(page, listing, listing.key, region)
    return [ours for item in items if (ours := read(item)) is not None]


def _all_scopes(page: Any, listing: Listing, key: str, region: str) -> Iterator[Any]:
    missing = [scope for scope in page.unreachables if is_in_region(scope, region)]
    if missing:
        raise Unavailable(f"GCP could not ask all zones ({listing.permission}): {', '.join(missing)}.")
    for scope, scoped in page.items.items():
        if is_in_region(scope, region):
            _refuse_gaps(scoped.warning, scope, listing)
            yield from getattr(scoped, key)


def _refuse_gaps(warning: Any, scope: str, listing: Listing) -> None:
    if warning.code and warning.code not in _HARMLESS:
        raise Unavailable(
            f"GCP's answer about {scope} is incomplete ({listing.permission}, {warning.code}): {warning.message}"
        )
