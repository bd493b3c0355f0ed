"""Who may ask: a valid key, in the right header, and only while it is valid."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from gpudev.api.authentication import Authentication
from gpudev.domain.access.users import ApiKey, Role, User
from gpudev.domain.errors import RateLimited, Unauthenticated
from gpudev.domain.ids import UserId
from gpudev.http_edge.rate_limits import TokenBuckets
from gpudev.ports.access import AccessChange, NoAccessChanges
from support.api.harness import Api, public_key, refused, submit
from support.clock import ManualClock

PATHS = [
    ("POST", "/v1/jobs/submit"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/abcd"),
    ("POST", "/v1/jobs/abcd/cancel"),
    ("POST", "/v1/jobs/abcd/extend"),
    ("GET", "/v1/jobs/abcd/events"),
    ("GET", "/v1/gpu/availability"),
    ("GET", "/v1/cluster/status"),
    ("POST", "/v1/keys/rotate"),
]

NO_KEYS = [
    "",
    "Bearer",
    "Bearer ",
    "Bearer gpudev_wrong",
    "Bearer sk-something",
    "Basic Z3B1ZGV2Xzpw",
    "gpudev_abc",
    "Bearer gpudev_" + "x" * 5000,
    "Bearer gpudev_\u00e9",
    "Bearer gpudev_a gpudev_b",
]


async def test_without_a_key_nothing_of_v1_is_answered_whatever_else_is_wrong(
    api: Api, subtests: pytest.Subtests
) -> None:
    for method, path in PATHS:
        with subtests.test(path=path):
            answer = await api.anonymous().request(method, path, content=b"{not json")
            refused(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"] == 'Bearer realm="gpu-dev"'


async def test_what_is_no_key_of_ours_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    client = api.anonymous()
    for header in NO_KEYS:
        with subtests.test(header=header[:40]):
            headers = {"Authorization": header.encode("latin-1")}
            refused(await client.get("/v1/jobs", headers=headers), 401, "unauthenticated")  # type: ignore[arg-type]


async def test_a_key_works_until_its_end_and_not_a_moment_longer(api: Api) -> None:
    user = await api.services.users.add_user("ada", Role.USER)
    issued = await api.services.users.issue_key(user.user_id, timedelta(milliseconds=-1), "ended")
    client = api.anonymous({"Authorization": f"Bearer {issued.secret}"})
    refused(await client.get("/v1/jobs"), 401, "unauthenticated")


async def test_rotating_gives_a_new_key_and_ends_the_old_one_at_once(api: Api) -> None:
    old = await api.as_user("ada")
    await submit(old)
    answer = await old.post("/v1/keys/rotate")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    rotated = answer.json()
    assert rotated["username"] == "ada"
    new = api.anonymous({"Authorization": f"Bearer {rotated['api_key']}"})
    assert len((await new.get("/v1/jobs")).json()["jobs"]) == 1
    refused(await old.get("/v1/jobs"), 401, "unauthenticated")


async def test_a_key_with_an_end_is_replaced_by_one_with_an_end(api: Api) -> None:
    endless = await api.as_user("ada")
    assert (await endless.post("/v1/keys/rotate")).json()["expires_at"] is None
    user = await api.services.users.add_user("bob", Role.USER)
    issued = await api.services.users.issue_key(user.user_id, timedelta(hours=1), "login")
    client = api.anonymous({"Authorization": f"Bearer {issued.secret}"})
    ends = datetime.fromisoformat((await client.post("/v1/keys/rotate")).json()["expires_at"])
    assert timedelta(minutes=119) < ends - datetime.now(UTC) <= timedelta(hours=2)


async def test_a_user_who_is_no_longer_active_is_refused_within_the_moment(api: Api) -> None:
    client = await api.as_user("ada")
    assert (await client.get("/v1/jobs")).status_code == 200
    async with api.world.stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET is_active = false")
    api.restart()  # a moment later nothing is remembered
    refused(await (api.anonymous(dict(client.headers))).get("/v1/jobs"), 401, "unauthenticated")


async def test_no_key_ever_reaches_the_log(api: Api) -> None:
    secret = await api.secret("ada")
    client = api.anonymous({"Authorization": f"Bearer {secret}"})
    with structlog.testing.capture_logs() as lines:
        await submit(client)
        await client.post("/v1/keys/rotate")
        await client.get("/v1/jobs")
        await api.anonymous({"Authorization": "Bearer gpudev_wrongone"}).get("/v1/jobs")
    assert lines
    text = str(lines)
    assert "gpudev_" not in text
    assert public_key().split()[1] not in text


class CountingIdentity:
    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.asked = 0
        self.before_answering: Callable[[], None] = lambda: None
        self.right: Callable[[str], bool] = lambda secret: secret == "gpudev_right"

    async def authenticate(self, secret: str) -> ApiKey:
        self.asked += 1
        self.before_answering()
        if not self.right(secret):
            raise Unauthenticated("no")
        return self.key


class Heard(NoAccessChanges):
    """What is heard, by a test's hand."""

    def __init__(self) -> None:
        self.fresh = False
        self.say: Callable[[AccessChange], None] = lambda _: None

    def attach(self, heard: Callable[[AccessChange], None]) -> None:
        self.say = heard

    def is_fresh(self) -> bool:
        return self.fresh


class Remembering:
    def __init__(self, clock: ManualClock, expires_at: datetime | None = None, *, fresh: bool = False) -> None:
        user = User(UserId(1), "ada", Role.USER)
        self.identity = CountingIdentity(ApiKey(7, user, "gpudev_ri", clock.now(), expires_at, True))
        self.seconds = 0.0
        self.changes = Heard()
        self.changes.fresh = fresh
        self.wrong = TokenBuckets(3, 60, monotonic=lambda: self.seconds)
        self.authentication = Authentication(
            self.identity, clock, changes=self.changes, wrong_keys=self.wrong, monotonic=lambda: self.seconds
        )

    async def ask(self, secret: str = "gpudev_right", address: str = "192.0.2.1") -> ApiKey:
        return await self.authentication.authenticate(f"Bearer {secret}", address)


async def test_while_nothing_is_heard_a_key_is_looked_up_once_a_second(clock: ManualClock) -> None:
    case = Remembering(clock)
    for case.seconds in (0.0, 0.5, 0.89):
        await case.ask()
    assert case.identity.asked == 1
    case.seconds = 0.9
    await case.authentication.authenticate("bearer gpudev_right")
    assert case.identity.asked == 2


async def test_while_changes_are_heard_no_request_asks_for_a_minute(clock: ManualClock) -> None:
    case = Remembering(clock, fresh=True)
    for case.seconds in (0.0, 1.0, 30.0, 59.9):
        await case.ask()
    assert case.identity.asked == 1
    case.seconds = 60.0
    await case.ask()
    assert case.identity.asked == 2


async def test_when_changes_are_heard_no_more_an_old_memory_counts_nothing(clock: ManualClock) -> None:
    case = Remembering(clock, fresh=True)
    await case.ask()
    case.seconds, case.changes.fresh = 1.0, False
    await case.ask()
    assert case.identity.asked == 2


@pytest.mark.parametrize("change", [AccessChange(key_id=7), AccessChange(user_id=1), AccessChange()])
async def test_what_was_changed_is_asked_for_anew(clock: ManualClock, change: AccessChange) -> None:
    case = Remembering(clock, fresh=True)
    await case.ask()
    case.changes.say(AccessChange(key_id=8))
    case.changes.say(AccessChange(user_id=2))
    await case.ask()
    assert case.identity.asked == 1
    case.changes.say(change)
    await case.ask()
    assert case.identity.asked == 2


async def test_an_answer_that_is_older_than_what_was_heard_is_not_remembered(clock: ManualClock) -> None:
    case = Remembering(clock, fresh=True)
    case.identity.before_answering = lambda: case.changes.say(AccessChange(key_id=7))
    await case.ask()
    case.identity.before_answering = lambda: None
    await case.ask()
    assert case.identity.asked == 2


async def test_a_key_that_is_refused_again_and_again_is_looked_up_once_a_second(clock: ManualClock) -> None:
    case = Remembering(clock, fresh=True)
    for case.seconds in (0.0, 0.1, 0.8):
        with pytest.raises(Unauthenticated):
            await case.ask("gpudev_wrong")
    assert case.identity.asked == 1
    case.changes.say(AccessChange(user_id=1))  # enabled again, it may be right by now
    with pytest.raises(Unauthenticated):
        await case.ask("gpudev_wrong")
    assert case.identity.asked == 2


async def test_guessing_keys_ends_soon_for_that_address_alone(clock: ManualClock) -> None:
    case = Remembering(clock)
    await case.ask()
    for number in range(3):
        with pytest.raises(Unauthenticated):
            await case.ask(f"gpudev_guess{number}")
    asked = case.identity.asked
    with pytest.raises(RateLimited) as refusal:
        await case.ask("gpudev_another")
    assert 0 < refusal.value.retry_after_seconds <= 1
    assert case.identity.asked == asked, "no more queries for that address"
    await case.ask()  # who is remembered is not kept out by others there
    with pytest.raises(Unauthenticated):
        await case.ask("gpudev_another", "192.0.2.2")
    case.seconds += 1
    with pytest.raises(Unauthenticated):
        await case.ask("gpudev_another2")


async def test_memory_of_keys_is_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudev.api.authentication._MAX_CACHED_KEYS", 3)
    monkeypatch.setattr("gpudev.api.authentication._MAX_WRONG_KEYS", 3)
    case = Remembering(clock, fresh=True)
    case.identity.right = lambda secret: secret.startswith("gpudev_right")
    for number in range(10):
        await case.ask(f"gpudev_right{number}")
        with pytest.raises(Unauthenticated):
            await case.ask(f"gpudev_wrong{number}", f"192.0.2.{number}")
    assert len(case.authentication._cached) == 3
    assert len(case.authentication._known_wrong) == 3
    await case.ask("gpudev_right9")
    assert case.identity.asked == 20, "the newest are kept"


async def test_a_remembered_key_does_not_outlive_its_own_end(clock: ManualClock) -> None:
    case = Remembering(clock, expires_at=clock.now() + timedelta(milliseconds=100), fresh=True)
    await case.ask()
    clock.move(milliseconds=100)
    await case.ask()
    assert case.identity.asked == 2


async def test_a_key_revoked_here_is_forgotten(clock: ManualClock) -> None:
    case = Remembering(clock)
    await case.ask()
    case.authentication.forget_key(8)
    await case.ask()
    assert case.identity.asked == 1
    case.authentication.forget_key(case.identity.key.key_id)
    case.identity.key = replace(case.identity.key, is_active=False)
    await case.ask()
    assert case.identity.asked == 2
