"""`gpu-dev-server users|keys|audit` on a real database, each with its line in the audit log."""

import asyncio
import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from gpudev.adapters.postgres.stores import open_stores
from gpudev.domain.access.users import ApiKey
from gpudev.main import cli
from gpudev.settings import DatabaseSettings, Settings

Run = Callable[..., Result]


@pytest.fixture
def run(request: pytest.FixtureRequest, postgres: object) -> Run:
    database: DatabaseSettings = request.getfixturevalue("database")
    environment = {
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
    }

    def run(*arguments: str, code: int = 0) -> Result:
        # In a thread of its own: the command runs its own loop.
        done = CliRunner().invoke(cli, list(arguments), env=environment)
        assert done.exit_code == code, f"{done.output}\n{done.exception!r}"
        return done

    return run


@pytest.fixture
def valid(settings: Settings) -> Callable[[str], ApiKey | None]:
    def look(secret: str) -> ApiKey | None:
        async def find() -> ApiKey | None:
            stores = open_stores(settings)
            try:
                return await stores.users.find_key(secret)
            finally:
                await stores.close()

        return asyncio.run(find())

    return look


def audit(run: Run, *options: str) -> list[tuple[str, str | None]]:
    lines = run("audit", "--json", *options).output.splitlines()
    return [(entry["action"], entry["target"]) for entry in map(json.loads, lines)]


def test_a_user_is_disabled_and_enabled_and_old_keys_stay_over(run: Run, valid: Callable[[str], ApiKey | None]) -> None:
    secret = json.loads(run("users", "add", "ada", "--json").output)["api_key"]
    assert valid(secret) is not None
    assert "revoked" in run("users", "disable", "ada").output
    assert valid(secret) is None
    assert "disabled" in run("users", "list").output
    run("users", "enable", "ada")
    assert valid(secret) is None
    assert valid(json.loads(run("users", "key", "ada", "--json").output)["api_key"]) is not None
    assert audit(run) == [
        ("gpu-dev-server users add", "ada (user)"),
        ("gpu-dev-server users disable", "ada"),
        ("gpu-dev-server users enable", "ada"),
        ("gpu-dev-server users key", "ada"),
    ]
    assert audit(run, "--action", "disable") == [("gpu-dev-server users disable", "ada")]


def test_a_role_is_given(run: Run, valid: Callable[[str], ApiKey | None]) -> None:
    secret = json.loads(run("users", "add", "ada", "--json").output)["api_key"]
    assert "the role operator" in run("users", "role", "ada", "operator").output
    key = valid(secret)
    assert key is not None
    assert key.user.role == "operator"
    run("users", "role", "ada", "king", code=2)
    assert run("users", "role", "nobody", "admin", code=1).exception is not None
    assert run("users", "disable", "nobody", code=1).exception is not None


def test_the_last_active_admin_stays_one(run: Run) -> None:
    run("users", "add", "ada", "--role", "admin")
    run("users", "add", "bob", "--role", "admin")
    run("users", "disable", "bob")
    for command in (("disable", "ada"), ("role", "ada", "user")):
        assert "ada is the last active admin" in str(run("users", *command, code=1).exception)
    run("users", "enable", "bob")
    run("users", "role", "ada", "operator")
    listed = {user["username"]: user for user in json.loads(run("users", "list", "--json").output)}
    assert (listed["ada"]["role"], listed["bob"]["is_active"]) == ("operator", True)


def test_the_owners_next_key_ends_the_one_it_replaces_and_no_other(
    run: Run, valid: Callable[[str], ApiKey | None]
) -> None:
    def log_in(*instead: str) -> str:
        return str(json.loads(run("users", "ensure-owner", "ada", "--json", *instead).output)["api_key"])

    here, elsewhere = log_in(), log_in()
    given = str(json.loads(run("users", "key", "ada", "--json").output)["api_key"])
    fresh = log_in("--instead-of", here[:16])
    assert valid(here) is None
    again = log_in("--instead-of", given[:16])
    for secret in (elsewhere, given, fresh, again):
        assert valid(secret) is not None


def test_keys_are_listed_and_revoked_by_number_or_first_letters(
    run: Run, valid: Callable[[str], ApiKey | None]
) -> None:
    first = json.loads(run("users", "add", "ada", "--json").output)["api_key"]
    second = json.loads(run("users", "key", "ada", "--json").output)["api_key"]
    listed = json.loads(run("keys", "list", "--user", "ada", "--json").output)
    assert [key["key_prefix"] for key in listed] == [second[:16], first[:16]]
    text = run("keys", "list").output
    assert first not in text
    assert first[:16] in text
    run("keys", "revoke", str(listed[0]["key_id"]))
    assert (valid(first) is not None, valid(second)) == (True, None)
    run("keys", "revoke", first[:14])
    assert valid(first) is None
    assert run("keys", "list").output == "no keys\n"
    assert "(ended)" in run("keys", "list", "--all").output
    for nothing in ("gpudev_", "gpudev_nosuchkey", "x", "999999"):
        run("keys", "revoke", nothing, code=1)
    assert len(audit(run, "--action", "keys revoke")) == 2


def test_the_audit_log_for_people_is_a_line_each(run: Run) -> None:
    run("users", "add", "ada")
    (line,) = run("audit", "--hours", "1").output.splitlines()
    assert line[19:25] == " UTC  ", "whose clock it is"
    assert "gpu-dev-server users add" in line
    assert "ada (user)" in line
    assert "(console)" in line
    assert line.endswith("ok")
    assert run("audit", "--user", "somebody").output == ""
