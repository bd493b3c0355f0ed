"""People outside are told once of what happens, whatever the places they are told at do, and no secret gets out."""

import asyncio
import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.adapters.notifier import AppriseNotifier
from gpudev.adapters.postgres.database.roles import RECONCILER
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.routes.system import redact_settings
from gpudev.bootstrap.notifications import NullNotifier, open_notifier, run_notifications
from gpudev.domain.errors import Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.notifications import Notification, NotificationKind, Recipient
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.processor.notifications import NotificationSender
from gpudev.settings import NotifySettings, Settings, given_variables, load_settings
from support.fixtures.notifications import Mailbox, Webhook
from support.polling import eventually_async
from support.processor_world import World

pytestmark = pytest.mark.slow
SECRETS = ("planted-4711", "planted-token")


def telling(
    world: World, *urls: str, occasions: tuple[NotificationKind, ...] = tuple(NotificationKind)
) -> NotificationSender:
    return NotificationSender(world.stores.notifications, AppriseNotifier(urls), world.clock, occasions)


async def states(world: World) -> list[tuple[str, int, str | None]]:
    async with world.stores.pool.acquire() as connection:
        found = await connection.fetch("SELECT state, attempts, error FROM notifications ORDER BY notification_id")
    return [tuple(row) for row in found]


async def test_a_whole_life_is_told_once_each(world: World, webhook: Webhook) -> None:
    notifications = telling(world, webhook.url)
    await notifications.send_due()
    rid = await world.submit(8, hours=1)
    failing = await world.submit(8, user="bob")
    for step in (0, 31, 16, 9, 5):
        world.clock.move(minutes=step)
        await world.turn()
        await notifications.send_due()
        await notifications.send_due()
    await world.turn()
    await notifications.send_due()
    world.cluster.kill(failing)
    await world.turn()
    await notifications.send_due()
    assert webhook.titles == [
        f"{rid.hex[:8]} is ready",
        f"{rid.hex[:8]} ends in 29 minutes",
        f"{rid.hex[:8]} ends in 13 minutes",
        f"{rid.hex[:8]} ends in 4 minutes",
        f"{rid.hex[:8]} is over",
        f"{failing.hex[:8]} is ready",
        f"{failing.hex[:8]} failed",
    ]
    assert {state for state, _, _ in await states(world)} == {"sent"}
    path, body = webhook.posts[0]
    assert path == "/hooks/planted-token"
    assert (body["type"], body["message"].startswith("8 x h100 of ada, until ")) == ("success", True)


async def test_a_place_that_refuses_is_tried_again_later_and_delays_no_other(
    world: World, webhook: Webhook, mailbox: Mailbox
) -> None:
    webhook.status = 503
    mail = f"mailto://u:planted-4711@localhost:{mailbox.port}?from=gpu@example.com&to=team@example.com&mode=insecure"
    notifications = telling(world, webhook.url, mail)
    await notifications.send_due()
    await world.submit(1)
    await world.turn()
    await notifications.send_due()
    assert sorted(await states(world)) == [("sent", 1, None), ("waiting", 1, "not delivered (status 503)")]
    [(to, letter)] = mailbox.letters
    assert to == ["team@example.com"]
    assert "is ready" in str(letter["Subject"])
    await notifications.send_due()
    assert len(webhook.posts) == 1, "not at once"
    webhook.status = 200
    world.clock.move(seconds=30)
    await notifications.send_due()
    assert len(webhook.posts) == 2
    assert {state for state, _, _ in await states(world)} == {"sent"}
    assert len(mailbox.letters) == 1


async def test_a_place_that_hangs_delays_nobody(world: World, webhook: Webhook, mailbox: Mailbox) -> None:
    mail = f"mailto://localhost:{mailbox.port}?from=gpu@example.com&to=team@example.com&mode=insecure"
    notifications = telling(world, f"{webhook.url}?rto=100", mail)
    await notifications.send_due()
    await world.submit(1)
    await world.turn()
    webhook.may_answer.clear()
    sending = asyncio.create_task(notifications.send_due())
    await eventually_async(lambda: webhook.posts and mailbox.letters)
    second = await world.submit(1)
    await world.turn()
    assert (await world.kinds(second))[-1] == "active"
    assert not sending.done()
    webhook.may_answer.set()
    await sending


async def test_it_is_given_up_after_a_day(world: World, webhook: Webhook) -> None:
    webhook.status = 500
    notifications = telling(world, webhook.url)
    await notifications.send_due()
    await world.submit(1, hours=100)
    await world.turn()
    for _ in range(60):
        await notifications.send_due()
        world.clock.move(minutes=30)
    [(state, attempts, error)] = await states(world)
    assert (state, error) == ("given_up", "not delivered (status 500)")
    assert 5 < attempts < 40
    assert len(webhook.posts) == attempts


async def test_what_was_extended_meanwhile_is_not_warned_of(world: World, webhook: Webhook) -> None:
    notifications = telling(world, webhook.url, occasions=(NotificationKind.WARNING,))
    await notifications.send_due()
    rid = await world.submit(1, hours=1)
    await world.turn()
    world.clock.move(minutes=40)
    await world.turn()
    row = await world.get(rid)
    later = {"expires_at": world.clock.now() + timedelta(hours=2), "warned_minutes": None}
    change = Change(rid, row.status, row.version, NewEvent("extended", "2 hours more"), fields=later)
    await world.stores.reservations.apply_change(change, now=world.clock.now())
    await notifications.send_due()
    assert webhook.posts == []
    assert [state for state, _, _ in await states(world)] == ["outdated"]


async def test_a_sender_that_died_is_followed_by_another_and_two_at_once_send_once(
    world: World, webhook: Webhook
) -> None:
    notifications = telling(world, webhook.url)
    await notifications.send_due()
    await world.submit(1)
    await world.turn()
    assert len(await world.stores.notifications.claim(world.clock.now(), timedelta(minutes=5), 10)) == 1
    await notifications.send_due()
    assert webhook.posts == [], "somebody has it"
    world.clock.move(minutes=5)
    await asyncio.gather(*(notifications.send_due() for _ in range(4)))
    assert len(webhook.posts) == 1


async def test_an_owner_is_reached_at_their_own_address_and_one_without_is_passed_over(
    world: World, mailbox: Mailbox
) -> None:
    url = f"mailto://localhost:{mailbox.port}?from=gpu@example.com&to={{email}}&mode=insecure"
    notifications = telling(world, url)
    await notifications.send_due()
    await world.user("ada")
    async with world.stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET email = 'ada@example.com' WHERE username = 'ada'")
    await world.submit(1, user="ada")
    await world.submit(1, user="bob")
    await world.turn()
    await notifications.send_due()
    assert [to for to, _ in mailbox.letters] == [["ada@example.com"]]
    assert ("given_up", 1, "no address for its owner") in await states(world)


@pytest.mark.parametrize("name", ["a@evil.example.com/?x=", "x&to=evil@example.com", "../../admin", "a b#c"])
async def test_whatever_an_owner_is_called_the_place_stays_the_operators(webhook: Webhook, name: str) -> None:
    notifier = AppriseNotifier([webhook.url.replace("planted-token", "{username}/end")])
    [target] = notifier.targets
    await notifier.send(target, Notification(NotificationKind.READY, "title", "text"), Recipient(name, None))
    [(path, _)] = webhook.posts
    assert path.startswith("/hooks/")
    assert path.endswith("/end")
    assert ".." not in path.split("/")
    await notifier.close()


async def test_nobody_is_led_elsewhere(webhook: Webhook) -> None:
    webhook.status, webhook.location = 307, "http://127.0.0.1:1/other"
    notifier = AppriseNotifier([webhook.url])
    [target] = notifier.targets
    with pytest.raises(Unavailable):
        await notifier.send(target, Notification(NotificationKind.READY, "title", "text"), Recipient("ada", None))
    assert len(webhook.posts) == 1
    await notifier.close()


@pytest.fixture
def quiet_afterwards() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.mark.usefixtures("quiet_afterwards")
async def test_no_secret_is_logged_kept_or_shown(
    world: World, webhook: Webhook, capfd: pytest.CaptureFixture[str]
) -> None:
    everything = io.StringIO()
    logging.basicConfig(stream=everything, level=logging.DEBUG, force=True)
    webhook.status = 401
    unknown = "nonsense://planted-4711"
    settings = load_settings({"GPU_DEV_NOTIFY_URLS": f"{webhook.url}\n{unknown}"})
    notifier = open_notifier(settings.notify)
    notifications = NotificationSender(world.stores.notifications, notifier, world.clock)
    await notifications.send_due()
    await world.submit(1)
    await world.turn()
    await notifications.send_due()
    await notifier.close()
    async with world.stores.pool.acquire() as connection:
        kept = [
            str(row)
            for table in ("notifications", "notify_targets")
            for row in await connection.fetch(f"TABLE {table}")
        ]
    out, err = capfd.readouterr()
    assert len(webhook.posts) == 1
    assert "notification.not_sent" in out
    assert "notifications.invalid_url" in out
    logging.debug("and this is heard")
    assert "and this is heard" in everything.getvalue()
    told = [out, err, everything.getvalue(), repr(settings), repr(redact_settings(settings)), *kept]
    told.append(repr(given_variables({"GPU_DEV_NOTIFY_URLS": webhook.url})))
    assert not [text for text in told if any(secret in text for secret in SECRETS)]


async def test_a_place_that_is_taken_out_gets_nothing_more(world: World, webhook: Webhook) -> None:
    webhook.status = 500
    notifications = telling(world, webhook.url)
    await notifications.send_due()
    await world.submit(1)
    await world.turn()
    await notifications.send_due()
    nobody = NotificationSender(world.stores.notifications, NullNotifier(), world.clock)
    await nobody.send_due()
    rid = await world.submit(1)
    await world.turn()
    assert await world.kinds(rid) == ["submitted", "preparing", "active"]
    assert [state for state, _, _ in await states(world)] == ["given_up"]


async def test_what_the_backstop_ends_is_told_too(
    world: World, webhook: Webhook, stores_of: Callable[[str], Stores]
) -> None:
    """It has another role in the database than the processor."""
    notifications = telling(world, webhook.url, occasions=(NotificationKind.ENDED,))
    await notifications.send_due()
    rid: ReservationId = await world.submit(1)
    row = await world.get(rid)
    change = Change(rid, row.status, row.version, NewEvent("cancelled", "nobody looked at it"), to=Status.CANCELLED)
    await stores_of(RECONCILER).reservations.apply_change(change, now=world.clock.now())
    await notifications.send_due()
    assert webhook.titles == [f"{rid.hex[:8]} was cancelled"]


async def test_without_apprise_or_with_a_file_that_is_not_there_everything_else_goes_on(
    world: World, settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    wanted = NotifySettings(secret_urls=("json://example.com",), urls_file="/nonexistent/urls")
    async with run_notifications(wanted, world.stores, lambda: True):
        rid = await world.submit(1)
        await world.turn()
    assert await world.kinds(rid) == ["submitted", "preparing", "active"]
    out, _ = capfd.readouterr()
    assert "gpu-dev[notify]" in out
    assert "/nonexistent/urls" in out
    assert replace(settings, notify=wanted).notify.on == ("ready", "warning", "failed", "ended")
