"""Invitations: one name, one key, once; and links that say where to come in."""

import asyncio
from datetime import timedelta

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.invitations import InvitationLink, InvitationState, parse_invitation_link
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Conflict, Invalid, NotFound
from gpudev.ports.access import Person
from support.api.harness import refused
from support.clock import ManualClock

PATH = "/v1/auth/invitation-login"
DAY = timedelta(hours=24)
SECRET, FINGERPRINT = "s" * 43, "f" * 43


async def invite(stores: Stores, clock: ManualClock, name: str = "bob", role: Role | None = None) -> str:
    return (await stores.invitations.invite(name, role, DAY, now=clock.now())).secret


async def accept(client: httpx2.AsyncClient, secret: str) -> httpx2.Response:
    return await client.post(PATH, json={"secret": secret})


async def states(stores: Stores, clock: ManualClock) -> list[InvitationState]:
    return [each.state(clock.now()) for each in await stores.invitations.list_invitations()]


async def test_an_invitation_is_exchanged_for_a_key_once(
    client: httpx2.AsyncClient, stores: Stores, clock: ManualClock
) -> None:
    secret = await invite(stores, clock)
    view = (await accept(client, secret)).json()
    assert (view["username"], view["role"]) == ("bob", "user")
    found = await stores.users.find_key(view["api_key"])
    assert found is not None
    assert found.expires_at is not None
    assert timedelta(days=29) < found.expires_at - found.created_at < timedelta(days=31)
    assert "ask for a new one" in refused(await accept(client, secret), 401, "unauthenticated")
    assert await states(stores, clock) == [InvitationState.USED]


async def test_of_many_who_come_at_once_one_gets_the_key(
    client: httpx2.AsyncClient, stores: Stores, clock: ManualClock
) -> None:
    secret = await invite(stores, clock)
    answers = await asyncio.gather(*(accept(client, secret) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7
    async with stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM api_keys") == 1


async def test_an_invitation_ends(client: httpx2.AsyncClient, stores: Stores, clock: ManualClock) -> None:
    secret = await invite(stores, clock)
    clock.move(hours=24)
    refused(await accept(client, secret), 401, "unauthenticated")
    assert await states(stores, clock) == [InvitationState.EXPIRED]
    assert await stores.users.list_users() == []


async def test_an_invitation_can_be_taken_back(client: httpx2.AsyncClient, stores: Stores, clock: ManualClock) -> None:
    secret = await invite(stores, clock)
    assert await stores.invitations.revoke("BOB", now=clock.now()) == 1
    refused(await accept(client, secret), 401, "unauthenticated")
    with pytest.raises(NotFound):
        await stores.invitations.revoke("bob", now=clock.now())
    assert await states(stores, clock) == [InvitationState.REVOKED]


async def test_a_new_invitation_takes_the_place_of_the_one_before(
    client: httpx2.AsyncClient, stores: Stores, clock: ManualClock
) -> None:
    first, second = await invite(stores, clock), await invite(stores, clock)
    refused(await accept(client, first), 401, "unauthenticated")
    assert (await accept(client, second)).status_code == 200


async def test_only_a_hash_of_the_secret_is_kept(stores: Stores, clock: ManualClock) -> None:
    secret = await invite(stores, clock)
    async with stores.pool.acquire() as connection:
        row = await connection.fetchrow("SELECT * FROM invitations")
    assert secret not in repr(dict(row))
    assert secret.encode() not in row["secret_hash"]


async def test_guesses_are_refused(client: httpx2.AsyncClient, stores: Stores, clock: ManualClock) -> None:
    await invite(stores, clock)
    for guess in ("", "x", SECRET, "%" * 43, "é" * 43, "s" * 44, "' OR true --".ljust(43, "x")):
        refused(await accept(client, guess), 401, "unauthenticated")
    assert await states(stores, clock) == [InvitationState.OPEN]


async def test_the_role_is_what_the_invitation_says_and_else_what_they_have(
    client: httpx2.AsyncClient, stores: Stores, clock: ManualClock
) -> None:
    first = (await accept(client, await invite(stores, clock, role=Role.OPERATOR))).json()
    again = (await accept(client, await invite(stores, clock))).json()
    down = (await accept(client, await invite(stores, clock, role=Role.USER))).json()
    assert [view["role"] for view in (first, again, down)] == ["operator", "operator", "user"]
    assert len(await stores.users.list_users()) == 1, "the same person again"


async def test_a_user_who_was_made_here_can_be_invited(
    client: httpx2.AsyncClient, stores: Stores, clock: ManualClock
) -> None:
    made = await stores.users.add_user("bob", Role.USER)
    view = (await accept(client, await invite(stores, clock))).json()
    found = await stores.users.find_key(view["api_key"])
    assert found is not None
    assert found.user.user_id == made.user_id


async def test_who_logs_in_another_way_cannot_be_taken_over_by_an_invitation(
    client: httpx2.AsyncClient, stores: Stores, clock: ManualClock
) -> None:
    secret = await invite(stores, clock, "ada")  # before ada is known at all
    await stores.accounts.enrol(Person("ada", "aws", "1:ada"), came_from=None, now=clock.now())
    refused(await accept(client, secret), 403, "forbidden")
    with pytest.raises(Conflict, match="aws"):
        await invite(stores, clock, "ada")
    with pytest.raises(Conflict, match="exactly that name"):
        await invite(stores, clock, "Ada")


async def test_a_disabled_user_is_neither_invited_nor_let_in(
    client: httpx2.AsyncClient, stores: Stores, clock: ManualClock
) -> None:
    await accept(client, await invite(stores, clock))
    secret = await invite(stores, clock)
    async with stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET is_active = false")
    refused(await accept(client, secret), 403, "forbidden")
    with pytest.raises(Conflict, match="disabled"):
        await invite(stores, clock)


async def test_only_names_that_can_be_names_are_invited(stores: Stores, clock: ManualClock) -> None:
    for name in ("", "../etc", "bob smith", "-x", "b\n"):
        with pytest.raises(Invalid):
            await invite(stores, clock, name)


# Links


@pytest.mark.parametrize("url", ["https://192.0.2.7:7443", "https://lab.example.org", "https://[2001:db8::7]:7443/api"])
@pytest.mark.parametrize("fingerprint", [FINGERPRINT, None])
def test_a_link_comes_back_as_it_was_sent(url: str, fingerprint: str | None) -> None:
    link = InvitationLink(url, SECRET, fingerprint)
    assert parse_invitation_link(f" {link}\n") == link


def test_the_secret_is_where_no_browser_sends_it() -> None:
    head, _, fragment = str(InvitationLink("https://192.0.2.7", SECRET, FINGERPRINT)).partition("#")
    assert SECRET not in head
    assert SECRET in fragment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://192.0.2.7",
        f"http://192.0.2.7/invitation#{SECRET}",
        f"ftp://192.0.2.7/invitation#{SECRET}",
        f"https://192.0.2.7/elsewhere#{SECRET}",
        f"https://192.0.2.7/invitation?{SECRET}",
        f"https://192.0.2.7/invitation#{SECRET[:-1]}",
        f"https://192.0.2.7/invitation#{SECRET}.{FINGERPRINT[:-1]}",
        f"https://192.0.2.7/invitation#{SECRET}.{FINGERPRINT}.x",
        f"https://good.example@evil.example/invitation#{SECRET}",
        f"https:///invitation#{SECRET}",
        f"https://192.0.2.7:x/invitation#{SECRET}",
        f"https://[::1/invitation#{SECRET}",
        f"http://127.0.0.1.evil.example/invitation#{SECRET}",
    ],
)
def test_what_is_no_link_or_no_safe_one_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        parse_invitation_link(text)
    assert SECRET[:10] not in refusal.value.message


def test_on_this_machine_no_certificate_is_needed() -> None:
    assert parse_invitation_link(f"http://127.0.0.1:7480/invitation#{SECRET}").fingerprint is None


@given(st.text())
def test_no_text_breaks_the_reading_of_links(text: str) -> None:
    for candidate in (text, f"https://{text}/invitation#{SECRET}"):
        try:
            parse_invitation_link(candidate)
        except Invalid:
            continue
