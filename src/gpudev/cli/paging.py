"""Lists that come in pages, up to as many as were asked for."""

import json
from collections.abc import Mapping
from typing import Any

from gpudev.cli.api_calls import Api, Reply
from gpudev.wire.reservations import JobList

_LARGEST_PAGE = 200


def list_jobs(api: Api, query: Mapping[str, Any], limit: int) -> Reply[JobList]:
    """One page is the API's answer untouched; several are put together in the same form."""
    pages: list[Reply[JobList]] = []
    wanted, cursor = limit, None
    while True:
        asked = {**query, "limit": min(wanted, _LARGEST_PAGE)} | ({"cursor": cursor} if cursor else {})
        page = api.list_page(asked)
        pages.append(page)
        wanted -= len(page.value.jobs)
        cursor = page.value.next_cursor
        if cursor is None or wanted <= 0 or not page.value.jobs:
            break
    if len(pages) == 1:
        return pages[0]
    raw = [job for page in pages for job in json.loads(page.raw)["jobs"]]
    jobs = [job for page in pages for job in page.value.jobs]
    return Reply(json.dumps({"jobs": raw, "next_cursor": cursor}).encode(), JobList(jobs=jobs, next_cursor=cursor))
