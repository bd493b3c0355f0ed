"""Logging in with AWS, end to end over HTTP: who is let in, and what an attacker tries in their place."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
import structlog

from gpudev.adapters.aws.login import AwsIdentityProvider
from gpudev.api.app import create_app
from gpudev.bootstrap.api import open_api_dependencies
from support.access.aws_login_server import Place
from support.access.aws_signatures import ADA, SERVER, STS, Draft, but, wire
from support.access.sts_stub import ROLE, single_sign_on
from support.access.sts_stub.identities import any_caller, assumed
from support.api.harness import refused
from support.clock import ManualClock


async def test_somebody_with_the_role_gets_a_key_that_works_and_ends(place: Place) -> None:
    answer = await place.log_in(ADA)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    view = answer.json()
    assert (view["username"], view["role"]) == ("ada", "user")
    assert view["api_key"].startswith("gpudev_")
    assert len(view["api_key"]) >= len("gpudev_") + 43, "256 random bits"
    ends = datetime.fromisoformat(view["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=119) < ends <= timedelta(hours=2)
    assert await place.ask(view["api_key"]) == 200
    row = await place.row("ada")
    assert row["last_login_from"] == "127.0.0.1"
    assert row["last_login_at"] == place.clock.now()


async def test_sts_is_asked_exactly_what_was_signed(place: Place) -> None:
    await place.log_in(ADA)
    (asked,) = place.sts.requests
    assert (asked.method, asked.url, asked.body) == ("POST", "/", b"Action=GetCallerIdentity&Version=2011-06-15")
    names = {name.lower() for name, _ in asked.headers}
    assert names - {"accept", "accept-encoding", "connection", "content-length", "user-agent"} == {
        "host", "content-type", "x-amz-date", "x-amz-security-token", "x-gpu-dev-server", "x-gpu-dev-nonce",
        "authorization",
    }  # fmt: skip
    assert ADA.secret not in str(asked)


async def test_who_logs_in_again_is_the_same_user(place: Place) -> None:
    first = (await place.log_in(ADA)).json()
    second = (await place.log_in(single_sign_on("ADA"))).json()
    assert first["username"] == second["username"]
    assert first["api_key"] != second["api_key"]
    assert await place.users() == ["ada"]
    assert [await place.ask(view["api_key"]) for view in (first, second)] == [200, 200]


async def test_two_first_logins_at_once_make_one_user(place: Place) -> None:
    requests = [(await place.draft()).sign() for _ in range(4)]
    answers = await asyncio.gather(*(place.send(request) for request in requests))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert await place.users() == ["ada"]


async def test_the_ways_in_are_told_to_everybody(place: Place) -> None:
    methods = {method["kind"]: method for method in (await place.client.get("/v1/auth/methods")).json()["methods"]}
    aws = methods["aws"]
    assert (aws["server_names"], aws["roles"], aws["regions"]) == ([SERVER], [ROLE], ["us-east-2"])


async def test_a_server_without_the_login_gives_neither_key_nor_nonce(place: Place) -> None:
    bare = httpx2.ASGITransport(create_app(place.services))
    async with httpx2.AsyncClient(transport=bare, base_url="http://api") as client:
        refused(await client.post("/v1/auth/nonce"), 403, "forbidden")
        refused(await client.post("/v1/auth/aws-login", json=wire(Draft().sign())), 403, "forbidden")


async def test_the_parts_that_a_server_starts_with_let_people_in(place: Place, clock: ManualClock) -> None:
    async with open_api_dependencies(place.services.settings) as services:
        assert services.aws_login is not None
        nonce = await services.nonces.issue(timedelta(minutes=2), now=datetime.now(UTC))
        clock.move(to=datetime.now(UTC))  # that server has no other clock than the real one
        person = await services.aws_login.identify(Draft(nonce=nonce.value, at=clock.now()).sign())
    assert person.username == "ada"


# --- attacks -------------------------------------------------------------------------------------------------------


async def test_a_wrong_signature_is_refused(place: Place) -> None:
    request = (await place.draft()).sign()
    signature = request.headers["Authorization"][-64:]
    wrong = ("0" if signature[0] != "0" else "1") + signature[1:]
    forged = but(request, {"Authorization": request.headers["Authorization"].replace(signature, wrong)})
    assert "SignatureDoesNotMatch" in refused(await place.send(forged), 401, "unauthenticated")
    assert await place.users() == []


async def test_a_signature_by_another_key_than_it_says_is_refused(place: Place) -> None:
    eve = replace(ADA, secret="eve's own")
    refused(await place.send((await place.draft(identity=eve)).sign()), 401, "unauthenticated")


async def test_a_stolen_token_without_its_secret_is_refused(place: Place) -> None:
    eve = assumed("Other", "eve")
    place.sts.know(eve)
    mixed = (await place.draft(identity=replace(eve, token=ADA.token))).sign()
    refused(await place.send(mixed), 401, "unauthenticated")


async def test_a_request_is_good_once(place: Place) -> None:
    request = (await place.draft()).sign()
    assert (await place.send(request)).status_code == 200
    assert "nonce" in refused(await place.send(request), 401, "unauthenticated")
    assert len(place.sts.requests) == 1, "AWS is not even asked"


async def test_a_request_is_good_once_also_when_sent_many_times_at_once_to_two_servers(place: Place) -> None:
    request = (await place.draft()).sign()
    other = AwsIdentityProvider(place.services.settings, place.stores.nonces, place.clock)
    results = await asyncio.gather(
        *(place.aws.identify(request) for _ in range(5)),
        *(other.identify(request) for _ in range(5)),
        return_exceptions=True,
    )
    await other.close()
    assert sum(not isinstance(result, BaseException) for result in results) == 1


async def test_a_request_that_aws_refused_is_spent_too(place: Place) -> None:
    place.sts.identities.clear()
    request = (await place.draft()).sign()
    refused(await place.send(request), 401, "unauthenticated")
    place.sts.know(ADA)
    refused(await place.send(request), 401, "unauthenticated")


async def test_a_request_that_was_kept_for_later_is_refused(place: Place) -> None:
    request = (await place.draft()).sign()
    place.clock.move(minutes=2)
    assert "nonce" in refused(await place.send(request), 401, "unauthenticated")
    place.clock.move(minutes=3)
    assert "clock" in refused(await place.send(request), 401, "unauthenticated")


async def test_a_kept_request_is_not_made_fresh_by_a_new_nonce(place: Place) -> None:
    request = (await place.draft()).sign()
    assert (await place.send(request)).status_code == 200
    again = but(request, {"X-GPU-Dev-Nonce": await place.nonce()})
    assert "SignatureDoesNotMatch" in refused(await place.send(again), 401, "unauthenticated")


async def test_a_nonce_of_nobodys_is_refused(place: Place) -> None:
    refused(await place.send((await place.draft(nonce="n" * 32)).sign()), 401, "unauthenticated")
    assert place.sts.requests == []


async def test_a_request_signed_for_another_server_is_refused_though_the_nonce_is_ours(place: Place) -> None:
    """A server that relays what its users sign."""
    request = (await place.draft(server="evil.example")).sign()
    assert SERVER in refused(await place.send(request), 422, "invalid", "headers")
    relabelled = but(request, {"X-GPU-Dev-Server": SERVER})
    assert "SignatureDoesNotMatch" in refused(await place.send(relabelled), 401, "unauthenticated")


async def test_what_was_signed_for_another_purpose_is_refused(place: Place) -> None:
    """As a Kubernetes or Vault login of the same person: no server, no nonce, other headers."""
    for request in (
        (await place.draft(server=None, nonce=None, more={"X-K8s-Aws-Id": "cluster"})).sign(),
        (await place.draft(server=None, more={"X-Vault-AWS-IAM-Server-ID": "vault"})).sign(),
    ):
        refused(await place.send(request), 422, "invalid", "headers")
        added = but(request, {"X-GPU-Dev-Server": SERVER, "X-GPU-Dev-Nonce": await place.nonce()})
        refused(await place.send(added), 422, "invalid", "headers")


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("url", {"url": "https://evil.example/", "host": "evil.example"}),
    ("url", {"url": "http://169.254.169.254/latest/meta-data/"}),
    ("url", {"url": f"https://{STS.host}@evil.example/"}),
    ("url", {"url": f"{STS.url}?Action=GetAccessKeyInfo"}),
    ("body", {"body": "Action=GetAccessKeyInfo&Version=2011-06-15"}),
    ("body", {"body": "Action=GetCallerIdentity&Version=2011-06-15&Action=GetAccessKeyInfo"}),
    ("method", {"method": "GET", "url": f"{STS.url}?Action=GetCallerIdentity&Version=2011-06-15"}),
    ("headers", {"service": "s3"}),
    ("headers", {"region": "us-east-1"}),
    ("headers", {"more": {"Accept": "application/json"}}),
    ("headers", {"more": {"Transfer-Encoding": "chunked"}}),
    ("headers", {"signed": ["content-type", "host", "x-amz-date", "x-amz-security-token", "x-gpu-dev-nonce"]}),
]


async def test_another_request_than_the_one_is_refused_before_anybody_is_asked(
    place: Place, subtests: pytest.Subtests
) -> None:
    draft = await place.draft()
    for field, changes in OTHERS:
        with subtests.test(**changes):
            refused(await place.send(replace(draft, **changes).sign()), 422, "invalid", field)
    assert place.sts.requests == []
    assert (await place.send(draft.sign())).status_code == 200, "the nonce is unspent"


async def test_a_header_that_is_written_twice_is_forwarded_as_it_was_checked(place: Place) -> None:
    draft = await place.draft()
    good = json.dumps(wire(draft.sign()))
    right, wrong = f'"Host": "{STS.host}"', '"Host": "evil.example"'
    kind = {"Content-Type": "application/json"}
    last_is_wrong = good.replace(right, f"{right}, {wrong}")
    refused(
        await place.client.post("/v1/auth/aws-login", content=last_is_wrong, headers=kind), 422, "invalid", "headers"
    )
    last_is_right = good.replace(right, f"{wrong}, {right}")
    assert (await place.client.post("/v1/auth/aws-login", content=last_is_right, headers=kind)).status_code == 200
    assert place.sts.requests[0].values("host") == [STS.host]


NO_REQUESTS: list[dict[str, Any]] = [
    {},
    {"aws_access_key_id": "AKIA", "aws_secret_access_key": "sEcReT-key-of-ada", "aws_session_token": "t"},
    {"method": "POST", "url": STS.url, "headers": [["Host", STS.host]], "body": ""},
    {"method": "POST", "url": STS.url, "headers": {"Host": [STS.host, "evil"]}, "body": ""},
    {"method": "POST", "url": STS.url, "headers": {"Host": None}, "body": ""},
    {"method": 1, "url": 2, "headers": 3, "body": 4},
]


async def test_what_is_no_signed_request_is_refused_and_never_repeated(place: Place, subtests: pytest.Subtests) -> None:
    for body in NO_REQUESTS:
        with subtests.test(body=body):
            with structlog.testing.capture_logs() as lines:
                answer = await place.client.post("/v1/auth/aws-login", json=body)
            assert answer.status_code == 422
            assert "sEcReT" not in answer.text + str(lines)


async def test_nothing_secret_of_a_login_is_logged_or_told(place: Place) -> None:
    with structlog.testing.capture_logs() as lines:
        request = (await place.draft()).sign()
        view = (await place.send(request)).json()
        again = await place.send(request)
        wrong = await place.send((await place.draft(identity=replace(ADA, secret="x"))).sign())
    said = str(lines)
    assert "login.done" in said
    for secret in (view["api_key"], ADA.token, request.headers["Authorization"], request.headers["X-GPU-Dev-Nonce"]):
        assert secret is not None
        assert secret not in said + again.text + wrong.text


async def test_somebody_without_the_role_is_told_which_one_is_needed(place: Place, subtests: pytest.Subtests) -> None:
    for identity in (
        single_sign_on("ada", role="SomethingElse"),
        single_sign_on("ada", account="999999999999"),
        assumed(f"{ROLE}-admin", "ada"),
        any_caller(f"arn:aws:iam::123456789012:user/{ROLE}", "AIDAEXAMPLEUSER000000"),
        any_caller(f"arn:aws:sts::123456789012:federated-user/{ROLE}", "123456789012:x"),
    ):
        with subtests.test(arn=identity.arn):
            assert ROLE in refused(await place.log_in(identity), 403, "forbidden")
    assert await place.users() == []


async def test_a_session_whose_name_is_no_users_name_is_refused(place: Place, subtests: pytest.Subtests) -> None:
    for session in ("-ada", "a=b", "a,b", "=cmd"):
        with subtests.test(session=session):
            assert "name" in refused(await place.log_in(single_sign_on(session)), 403, "forbidden")
    assert await place.users() == []
