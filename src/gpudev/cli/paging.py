"""Lists that come in pages, up to as many as were asked for."""

import json
from collections.abc import Mapping
from typing import Any

from gpudev.cli.api_calls import ApiReply, CommandApi
from gpudev.wire.reservations import JobList

_LARGEST_PAGE = 200


def list_all_jobs(api: CommandApi, query: Mapping[str, Any], limit: int) -> ApiReply[JobList]:
    """One page is the API's answer untouched; several are put together in the same form."""
    pages: list[ApiReply[JobList]] = []
    wanted, cursor = limit, None
    while True:
        asked = {**query, "limit": min(wanted, _LARGEST_PAGE)} | ({"cursor": cursor} if cursor else {})
        page = api.list_jobs_page(asked)
        pages.append(page)
        wanted -= len(page.value.jobs)
        cursor = page.value.next_cursor
        if cursor is None or wanted <= 0 or not page.value.jobs:
            break
    if len(pages) == 1:
        return pages[0]
    raw = [job for page in pages for job in json.loads(page.raw)["jobs"]]
    jobs = [job for page in pages for job in page.value.jobs]
    return ApiReply(json.dumps({"jobs": raw, "next_cursor": cursor}).encode(), JobList(jobs=jobs, next_cursor=cursor))
