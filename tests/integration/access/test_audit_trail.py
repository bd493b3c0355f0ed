"""The audit log: every change, login and refusal is in it, in one line that nobody outside can forge."""

import asyncio
from collections.abc import Sequence

import httpx2
import pytest
import structlog

from gpudev.domain.access.users import Role
from gpudev.domain.errors import Unavailable
from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.rate_limits import Rate, RequestLimits
from gpudev.ports.access import AuditEntry, AuditQuery, sanitize_text
from support.api.harness import Api, refused, submit
from support.clock import ManualClock


async def entries(api: Api, **query: str) -> list[AuditEntry]:
    await api.services.trail.flush()
    return await api.services.audit_log.find_entries(AuditQuery(**query))  # type: ignore[arg-type]


async def test_every_change_says_who_what_when_from_where_and_what_came_of_it(
    api: Api, ada: httpx2.AsyncClient
) -> None:
    job = await submit(ada)
    await ada.post(f"/v1/jobs/{job['job_id']}/cancel", headers={"X-Request-ID": "abc-1"})
    await ada.post(f"/v1/jobs/{job['job_id']}/extend", json={"extension_hours": 1})
    await ada.post("/v1/jobs/submit", json={"gpu_count": "many"})
    submitted, cancelled, extended, refused_one = await entries(api)
    assert (submitted.username, submitted.action, submitted.outcome) == ("ada", "POST /v1/jobs/submit", "ok")
    assert submitted.target == f"/v1/jobs/{job['job_id']}"
    assert submitted.key_prefix is not None
    assert submitted.key_prefix.startswith("gpudev_")
    assert len(submitted.key_prefix) == 16
    assert (submitted.address, submitted.status, submitted.at) == ("127.0.0.1", 202, api.world.clock.now())
    assert (cancelled.action, cancelled.target) == ("POST /v1/jobs/{job_id}/cancel", job["job_id"])
    assert (cancelled.request_id, cancelled.outcome) == ("abc-1", "ok")
    assert (extended.outcome, extended.status) == ("conflict", 409)
    assert (refused_one.outcome, refused_one.status) == ("invalid", 422)


async def test_reading_is_not_recorded_but_being_refused_is(api: Api, ada: httpx2.AsyncClient) -> None:
    await ada.get("/v1/jobs")
    await ada.get("/v1/jobs/ffff")
    assert await entries(api) == []
    await ada.get("/v1/users")
    await api.anonymous().get("/v1/jobs")
    await api.anonymous({"Authorization": "Bearer gpudev_wrong"}).get("/v1/jobs/ffff")
    forbidden, nobody, wrong = await entries(api)
    assert (forbidden.username, forbidden.outcome, forbidden.action) == ("ada", "forbidden", "GET /v1/users")
    assert (nobody.username, nobody.outcome, nobody.status) == (None, "unauthenticated", 401)
    assert (wrong.outcome, wrong.target, wrong.key_prefix) == ("unauthenticated", "ffff", None)


async def test_a_login_that_fails_is_recorded(api: Api) -> None:
    answer = await api.anonymous().post("/v1/auth/invitation-login", json={"secret": "gpudev_invite_" + "x" * 43})
    assert 400 <= answer.status_code < 500
    (entry,) = await entries(api, action="invitation-login")
    assert entry.outcome != "ok"
    assert entry.address == "127.0.0.1"


async def test_nothing_from_outside_breaks_a_line_or_hides_in_it(api: Api, ada: httpx2.AsyncClient) -> None:
    evil = "ab%0a2026-01-01%20root%20ok%1b%5b2K%e2%80%ae%c2%85%00"
    with structlog.testing.capture_logs():
        assert (await ada.post(f"/v1/jobs/{evil}/cancel")).status_code == 422
    (entry,) = await entries(api)
    assert entry.target is not None
    assert entry.target.isprintable()
    assert entry.target.startswith("ab\\n2026-01-01 root ok\\x1b[2K\\u202e")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name", "plain name"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("back\\slash\\n", "back\\\\slash\\\\n"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\ud800", "\\ud800"),
        ("é漢", "é漢"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_text_from_outside_is_one_harmless_line(text: str, shown: str) -> None:
    assert sanitize_text(text) == shown
    assert sanitize_text(text).isprintable()


class FailingLog:
    def __init__(self) -> None:
        self.written: list[AuditEntry] = []
        self.away = True

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("the database does not answer")
        self.written += entries

    async def find_entries(self, query: AuditQuery) -> list[AuditEntry]:
        return self.written


def numbered(clock: ManualClock, count: int) -> list[AuditEntry]:
    return [AuditEntry(clock.now(), "POST /x", "ok", target=str(number)) for number in range(count)]


async def test_a_clean_stop_writes_everything_first(clock: ManualClock) -> None:
    log = FailingLog()
    log.away = False
    trail = AuditTrail(log, clock)
    trail.start()
    wanted = numbered(clock, 1234)
    for entry in wanted:
        trail.record(entry)
    await asyncio.sleep(0)
    await trail.close()
    assert log.written == wanted


async def test_entries_wait_for_a_database_that_is_away_and_keep_their_order(clock: ManualClock) -> None:
    log = FailingLog()
    trail = AuditTrail(log, clock)
    wanted = numbered(clock, 3)
    for entry in wanted:
        trail.record(entry)
    with pytest.raises(Unavailable):
        await trail.flush()
    log.away = False
    await asyncio.gather(trail.flush(), trail.flush())
    assert log.written == wanted, "each of them once"


async def test_what_can_be_written_nowhere_else_is_in_the_log(clock: ManualClock) -> None:
    trail = AuditTrail(FailingLog(), clock)
    trail.record(numbered(clock, 1)[0])
    with structlog.testing.capture_logs() as lines:
        await trail.close()
    assert [line["event"] for line in lines] == ["audit.unwritten"]
    assert lines[0]["action"] == "POST /x"


async def test_one_address_cannot_fill_the_log_with_refusals(api: Api) -> None:
    api.restart(request_limits=RequestLimits(wrong_keys=Rate(100_000, 60)))
    client = api.anonymous()
    for _ in range(150):
        refused(await client.get("/v1/jobs"), 401, "unauthenticated")
    found = await entries(api)
    kept = [entry for entry in found if entry.outcome == "unauthenticated"]
    left_out = [entry for entry in found if entry.outcome == "left_out"]
    assert 60 <= len(kept) < 150
    assert [entry.target for entry in left_out] == [f"{150 - len(kept)} more"]


async def test_admins_read_it_and_find_by_user_action_and_outcome(api: Api, ada: httpx2.AsyncClient) -> None:
    root = await api.as_user("root", Role.ADMIN)
    await submit(ada)
    await root.post("/v1/users/ada/disable")
    await ada.get("/v1/jobs")
    found = (await root.get("/v1/audit")).json()["entries"]
    assert [entry["outcome"] for entry in found] == ["ok", "ok", "unauthenticated"]
    by_root = (await root.get("/v1/audit", params={"user": "root"})).json()["entries"]
    assert [(entry["action"], entry["target"]) for entry in by_root] == [("POST /v1/users/{username}/disable", "ada")]
    assert len((await root.get("/v1/audit", params={"action": "submit", "limit": 1})).json()["entries"]) == 1
    assert (await root.get("/v1/audit", params={"outcome": "forbidden"})).json()["entries"] == []
