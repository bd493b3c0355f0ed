"""Letting others log in: asked for through the API, checked before it is accepted, made true by the processor."""

from datetime import timedelta

import httpx2

from gpudev.adapters.postgres.database.cleanup import delete_old_rows
from gpudev.domain.access.users import Role
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.domain.ids import ReservationId
from support.api.harness import Api, identifier, public_key, refused, submit


async def active(api: Api, client: httpx2.AsyncClient) -> tuple[str, ReservationId]:
    job = await submit(client)
    await api.world.turn()
    return f"/v1/jobs/{job['job_id']}/users", identifier(job)


async def let_work(api: Api) -> None:
    interiors = api.world.processor.addons
    await interiors.begin_due()
    await interiors.wait_idle()


async def test_whoever_is_added_is_let_in_with_the_keys_github_publishes(api: Api, ada: httpx2.AsyncClient) -> None:
    api.published.of = {"octocat": [public_key("cat"), public_key("second")]}
    users, rid = await active(api, ada)
    answer = await ada.post(users, json={"github_users": ["OctoCat"]})
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert [(user["github_user"], user["keys"], user["added_by"]) for user in told["users"]] == [("octocat", 2, "ada")]
    assert not told["in_effect"]
    await let_work(api)
    assert api.world.cluster.keys[rid] == (public_key(), public_key("cat"), public_key("second"))
    assert (await ada.get(users)).json()["in_effect"]
    history = await api.world.stores.reservations.events(rid)
    assert "ada added octocat" in [event.message for event in history]


async def test_who_has_no_keys_is_refused_with_the_reason_and_nobody_is_added(
    api: Api, ada: httpx2.AsyncClient
) -> None:
    api.published.of = {"octocat": [public_key("cat")]}
    users, _ = await active(api, ada)
    detail = refused(
        await ada.post(users, json={"github_users": ["octocat", "nobody"]}), 422, "invalid", "github_users"
    )
    assert "nobody" in detail
    assert "ssh_public_keys" not in detail, "that is no way out here"
    refused(await ada.post(users, json={"github_users": ["../x"]}), 422, "invalid", "github_users")
    refused(await ada.post(users, json={"github_users": []}), 422, "invalid", "github_users")
    assert (await ada.get(users)).json()["users"] == []


async def test_who_is_removed_is_let_in_no_longer_and_the_owner_always_is(api: Api, ada: httpx2.AsyncClient) -> None:
    api.published.of = {"octocat": [public_key("cat")], "twin": [public_key()]}
    users, rid = await active(api, ada)
    await ada.post(users, json={"github_users": ["octocat", "twin"]})
    await let_work(api)
    for name in ("octocat", "Twin"):
        assert (await ada.delete(f"{users}/{name}")).status_code == 202
    await let_work(api)
    assert api.world.cluster.keys[rid] == (public_key(),)
    assert (await ada.get(users)).json()["users"] == []
    refused(await ada.delete(f"{users}/octocat"), 404, "not_found")


async def test_one_who_is_added_before_the_start_is_let_in_from_the_start(api: Api, ada: httpx2.AsyncClient) -> None:
    api.published.of = {"octocat": [public_key("cat")]}
    job = await submit(ada)
    await ada.post(f"/v1/jobs/{job['job_id']}/users", json={"github_users": ["octocat"]})
    await api.world.turn()
    assert api.world.cluster.specs[identifier(job)].ssh_public_keys == (public_key(), public_key("cat"))
    await let_work(api)
    assert (await ada.get(f"/v1/jobs/{job['job_id']}/users")).json()["in_effect"]


async def test_an_unforeseen_error_is_retried_with_growing_pauses_like_any_other(
    api: Api, ada: httpx2.AsyncClient
) -> None:
    api.published.of = {"octocat": [public_key("cat")]}
    users, _ = await active(api, ada)
    await ada.post(users, json={"github_users": ["octocat"]})
    api.world.cluster.refuse_adjust = RecursionError("nobody thought of this")
    pauses = []
    for _ in range(3):
        await let_work(api)
        due = await api.world.stores.addons.next_due()
        assert due is not None
        pauses.append(due - api.world.clock.now())
        api.world.clock.move(seconds=pauses[-1].total_seconds())
    assert timedelta(0) < pauses[0] < pauses[1] < pauses[2]
    told = (await ada.get(users)).json()
    assert not told["in_effect"]
    assert "unexpected error (RecursionError)" in str(told)
    api.world.cluster.refuse_adjust = None
    await let_work(api)
    assert (await ada.get(users)).json()["in_effect"]


async def test_a_cluster_that_does_not_play_along_is_asked_again_and_the_trouble_is_told(
    api: Api, ada: httpx2.AsyncClient
) -> None:
    api.published.of = {"octocat": [public_key("cat")]}
    users, rid = await active(api, ada)
    for error in (Unavailable("the cluster is away"), ClusterError("the cluster says no")):
        api.world.cluster.refuse_adjust = error
        await ada.post(users, json={"github_users": ["octocat"]})
        await let_work(api)
        told = (await ada.get(users)).json()
        assert (told["in_effect"], told["trouble"]) == (False, str(error))
    api.world.cluster.refuse_adjust = None
    await let_work(api)
    assert public_key("cat") not in api.world.cluster.keys[rid], "not before its time"
    api.world.clock.move(minutes=2)
    await let_work(api)
    assert public_key("cat") in api.world.cluster.keys[rid]
    told = (await ada.get(users)).json()
    assert (told["in_effect"], told["trouble"]) == (True, None)


async def test_a_dev_server_that_is_made_anew_lets_the_same_people_in(api: Api, ada: httpx2.AsyncClient) -> None:
    api.published.of = {"octocat": [public_key("cat")]}
    users, rid = await active(api, ada)
    await ada.post(users, json={"github_users": ["octocat"]})
    await let_work(api)
    api.world.cluster.kill(rid, unwatched=True)
    await api.world.turn()
    assert api.world.cluster.launches == 2
    assert api.world.cluster.specs[rid].ssh_public_keys == (public_key(), public_key("cat"))
    api.world.cluster.keys[rid] = ()
    await let_work(api)
    assert api.world.cluster.keys[rid] == (public_key(), public_key("cat")), "it is looked at again after a start"


async def test_another_users_dev_server_is_not_there_to_be_entered(
    api: Api, ada: httpx2.AsyncClient, bob: httpx2.AsyncClient
) -> None:
    api.published.of = {"octocat": [public_key("cat")]}
    users, _ = await active(api, ada)
    await ada.post(users, json={"github_users": ["octocat"]})
    for answer in (
        await bob.post(users, json={"github_users": ["octocat"]}),
        await bob.get(users),
        await bob.delete(f"{users}/octocat"),
    ):
        refused(answer, 404, "not_found")
    olga = await api.as_user("olga", Role.OPERATOR)
    refused(await olga.post(users, json={"github_users": ["octocat"]}), 404, "not_found")
    assert (await olga.delete(f"{users}/octocat")).status_code == 202


async def test_one_that_has_ended_lets_nobody_in_any_more(api: Api, ada: httpx2.AsyncClient) -> None:
    api.published.of = {"octocat": [public_key("cat")]}
    users, _ = await active(api, ada)
    await ada.post(users.replace("/users", "/cancel"))
    refused(await ada.post(users, json={"github_users": ["octocat"]}), 409, "conflict")
    assert api.published.asked == []


async def test_no_more_than_twenty_others_are_let_in(api: Api, ada: httpx2.AsyncClient) -> None:
    names = [f"user-{number}" for number in range(21)]
    api.published.of = {name: [public_key(name)] for name in names}
    users, _ = await active(api, ada)
    for part in (names[:10], names[10:20]):
        assert (await ada.post(users, json={"github_users": part})).status_code == 202
    refused(await ada.post(users, json={"github_users": names[20:]}), 429, "limit_reached")
    assert len((await ada.get(users)).json()["users"]) == 20


async def test_as_many_as_there_may_be_are_let_in_by_one_request(api: Api, ada: httpx2.AsyncClient) -> None:
    names = [f"user-{number}" for number in range(21)]
    api.published.of = {name: [public_key(name)] for name in names}
    users, _ = await active(api, ada)
    answer = await ada.post(users, json={"github_users": names})
    refused(answer, 422, "invalid", "github_users")
    assert answer.json()["detail"] == "github_users must have at most 20 items, not 21"
    assert (await ada.post(users, json={"github_users": names[:20]})).status_code == 202
    assert len((await ada.get(users)).json()["users"]) == 20


async def test_what_opened_jupyter_is_forgotten_with_its_dev_server(api: Api, ada: httpx2.AsyncClient) -> None:
    users, rid = await active(api, ada)
    jupyter = users.replace("/users", "/jupyter")
    assert (await ada.post(f"{jupyter}/enable")).json()["state"] == "starting"
    await let_work(api)
    assert (await ada.get(jupyter)).json()["state"] == "ready"
    assert api.world.cluster.jupyters[rid].base_url == f"/v1/jobs/{rid}/jupyter/"
    secrets = await api.services.jupyter_keys.find_secrets(rid)
    assert secrets is not None
    assert (await ada.post(f"{jupyter}/enable")).status_code == 202
    assert await api.services.jupyter_keys.find_secrets(rid) == secrets, "twice is once"
    await delete_old_rows(api.world.processor.addons._store._pool)  # type: ignore[attr-defined]
    assert await api.services.jupyter_keys.find_secrets(rid) == secrets
    await ada.post(users.replace("/users", "/cancel"))
    await api.world.turn()
    await delete_old_rows(api.world.processor.addons._store._pool)  # type: ignore[attr-defined]
    assert await api.services.jupyter_keys.find_secrets(rid) is None
    assert (await ada.get(jupyter)).json()["state"] == "off"


async def test_links_are_for_owners_of_what_runs(api: Api, ada: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    users, _ = await active(api, ada)
    jupyter = users.replace("/users", "/jupyter")
    assert "jupyter enable" in refused(await ada.post(f"{jupyter}/link"), 409, "conflict")
    await ada.post(f"{jupyter}/enable")
    await let_work(api)
    link = (await ada.post(f"{jupyter}/link")).json()["url"]
    assert link.startswith(f"{jupyter}/enter?ticket=")
    refused(await bob.post(f"{jupyter}/link"), 404, "not_found")
    olga = await api.as_user("olga", Role.OPERATOR)
    refused(await olga.post(f"{jupyter}/link"), 404, "not_found")
    refused(await olga.post(f"{jupyter}/enable"), 404, "not_found")
    assert (await olga.post(f"{jupyter}/disable")).json()["state"] == "off"


async def test_only_where_something_is_wanted_inside_is_it_asked_for(api: Api, ada: httpx2.AsyncClient) -> None:
    """Most reservations have nothing of the kind, and are looked at all the time."""
    api.published.of = {"octocat": [public_key("cat")]}
    users, rid = await active(api, ada)
    plain = await api.world.get(rid)
    await ada.post(users, json={"github_users": ["octocat"]})
    wanted = await api.world.get(rid)
    await ada.delete(f"{users}/octocat")
    assert [row.has_addons for row in (plain, wanted, await api.world.get(rid))] == [False, True, True]
    assert (await ada.get(f"/v1/jobs/{rid}")).json()["users"] == []
