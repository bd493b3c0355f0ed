"""Listings that are whole or are not told: every page, and no zone that did not answer.

GCP answers an aggregated list with success also when some zones could not be asked, and says so in a warning.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpudev.adapters.gcp.calling import Caller
from gpudev.adapters.gcp.permissions import Permission
from gpudev.adapters.gcp.refusals import NotAllowed
from gpudev.adapters.gcp.resources import is_in_region
from gpudev.domain.errors import ClusterError, Unavailable

PAGE = 500
"""The most that GCP puts on a page."""
_HARMLESS = frozenset(
    {
        "NO_RESULTS_ON_PAGE",
        "DEPRECATED_RESOURCE_USED",
        "DEPRECATED_TYPE_USED",
        "EXPERIMENTAL_TYPE_USED",
    }
)
"""Any other warning may mean that something is missing."""


@dataclass(frozen=True, slots=True)
class Listing:
    permission: Permission
    client: str
    method: str
    request: str
    kind: str


GROUPS = Listing(
    Permission.LIST_GROUPS,
    "InstanceGroupManagers",
    "aggregated_list",
    "AggregatedListInstanceGroupManagersRequest",
    "compute#instanceGroupManagerAggregatedList",
)
DISKS = Listing(
    Permission.LIST_DISKS, "Disks", "aggregated_list", "AggregatedListDisksRequest", "compute#diskAggregatedList"
)
SNAPSHOTS = Listing(Permission.LIST_SNAPSHOTS, "Snapshots", "list", "ListSnapshotsRequest", "compute#snapshotList")


async def pages(caller: Caller, listing: Listing, *, asking: str = "", page: int = PAGE) -> list[Any]:
    """All pages of what fits the filter `asking`. The messages are the raw ones, which read many times faster."""
    send = getattr(caller.client(listing.client), listing.method)
    request_type = getattr(caller.messages, listing.request)
    answers: list[Any] = []
    token, seen = "", set[str]()
    while True:
        request = request_type(project=caller.project, max_results=page)
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
        answers.append(type(answer).pb(answer))
        token = answer.next_page_token
        if not token:
            return answers
        if token in seen:
            raise Unavailable(f"GCP's listing ({listing.permission}) goes round in circles.")
        seen.add(token)


def whole(answers: Iterable[Any], listing: Listing, region: str, pick: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """What all scopes of aggregated lists hold, of this region."""
    found: list[Any] = []
    for answer in answers:
        missing = [scope for scope in answer.unreachables if is_in_region(scope, region)]
        if missing:
            raise Unavailable(f"GCP could not ask all zones ({listing.permission}): {', '.join(missing)}.")
        # A warning for the whole page need not name the zones that are missing.
        _refuse_gaps(answer.warning, "all zones", listing)
        for scope, scoped in answer.items.items():
            if is_in_region(scope, region):
                _refuse_gaps(scoped.warning, scope, listing)
                found.extend(pick(scoped))
    return found


def whole_list(answers: Iterable[Any], listing: Listing) -> list[Any]:
    found: list[Any] = []
    for answer in answers:
        _refuse_gaps(answer.warning, "the project", listing)
        found.extend(answer.items)
    return found


def _refuse_gaps(warning: Any, scope: str, listing: Listing) -> None:
    if warning.code and warning.code not in _HARMLESS:
        raise Unavailable(
            f"GCP's answer about {scope} is incomplete ({listing.permission}, {warning.code}): {warning.message}"
        )
