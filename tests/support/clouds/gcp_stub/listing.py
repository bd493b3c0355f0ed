"""Listings of the stub: filters, pages, zones, and zones that cannot be asked."""

import itertools
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from support.clouds.gcp_stub.faults import Refused
from support.clouds.gcp_stub.project import Project, Resource

_HAS_LABEL = re.compile(r"labels\.([a-z0-9_-]+):\*")
_LABEL_IS = re.compile(r'labels\.([a-z0-9_-]+)\s*=\s*"?([a-z0-9_-]*)"?')
_NAME_IS = re.compile(r'name\s*=\s*"?([a-z0-9-]+)"?')


class Gap(Enum):
    """How it is told that a zone could not be asked."""

    IN_ITS_SCOPE = auto()
    AMONG_UNREACHABLES = auto()
    AS_A_WARNING = auto()


class Listings:
    def __init__(self, project: Project) -> None:
        self._project = project
        self.largest_page = 500
        self.gaps: dict[str, Gap] = {}
        """By zone."""

    def disks(self, query: Mapping[str, str]) -> Resource:
        return self._aggregated("diskAggregatedList", "disks", self._project.disks, query)

    def groups(self, query: Mapping[str, str]) -> Resource:
        return self._aggregated(
            "instanceGroupManagerAggregatedList", "instanceGroupManagers", self._project.groups, query
        )

    def snapshots(self, query: Mapping[str, str]) -> Resource:
        found, token = self._page(self._project.snapshots, query)
        return _listing("snapshotList", token) | {"items": [resource for _, resource in found]}

    def _aggregated(self, kind: str, key: str, shelf: Mapping[str, Resource], query: Mapping[str, str]) -> Resource:
        if self.gaps:
            shelf = {path: shelf[path] for path in shelf if _scope(path).removeprefix("zones/") not in self.gaps}
        found, token = self._page(shelf, query)
        items: dict[str, Any] = {f"zones/{zone}": {} for zone in self._project.zones}
        for path, resource in found:
            items.setdefault(_scope(path), {}).setdefault(key, []).append(resource)
        for scope, content in items.items():
            if not content:
                content["warning"] = {
                    "code": "NO_RESULTS_ON_PAGE",
                    "message": f"There are no results for scope '{scope}' on this page.",
                    "data": [{"key": "scope", "value": scope}],
                }
        answer = _listing(kind, token) | {"items": items}
        for zone, gap in self.gaps.items():
            self._tell_gap(answer, zone, gap)
        return answer

    def _tell_gap(self, answer: Resource, zone: str, gap: Gap) -> None:
        warning = {"code": "UNREACHABLE", "message": f"The zone {zone} could not be reached."}
        match gap:
            case Gap.IN_ITS_SCOPE:
                answer["items"][f"zones/{zone}"] = {"warning": warning}
            case Gap.AMONG_UNREACHABLES:
                answer.setdefault("unreachables", []).append(f"projects/{self._project.name}/zones/{zone}")
            case Gap.AS_A_WARNING:
                answer["warning"] = warning

    def _page(self, shelf: Mapping[str, Resource], query: Mapping[str, str]) -> tuple[list[tuple[str, Resource]], str]:
        """A token names the last path of the page before: what is made or removed meanwhile moves nothing."""
        size = min(int(query.get("maxResults", 500)), self.largest_page)
        number, _, after = query.get("pageToken", "page1:").partition(":")
        fitting = (
            (path, shelf[path])
            for path in sorted(shelf)
            if path > after and _fits(shelf[path], query.get("filter", "")) and not self._project.is_hidden(path)
        )
        page = list(itertools.islice(fitting, size))
        more = next(fitting, None) is not None
        return page, f"page{int(number.removeprefix('page')) + 1}:{page[-1][0]}" if more else ""


def _fits(resource: Resource, asking: str) -> bool:
    labels = resource.get("labels", {})
    if not asking:
        return True
    if found := _HAS_LABEL.fullmatch(asking):
        return found[1] in labels
    if found := _LABEL_IS.fullmatch(asking):
        return bool(labels.get(found[1]) == found[2])
    if found := _NAME_IS.fullmatch(asking):
        return bool(resource["name"] == found[1])
    raise Refused(400, "invalid", f"Invalid value for field 'filter': '{asking}'.")


def _listing(kind: str, token: str) -> Resource:
    answer: Resource = {"kind": f"compute#{kind}", "id": f"stub/{kind}"}
    return answer | ({"nextPageToken": token} if token else {})


def _scope(path: str) -> str:
    return "/".join(path.split("/")[2:4])
