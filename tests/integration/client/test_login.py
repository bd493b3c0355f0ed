"""Keys: where they come from, where they are kept, and what happens when one has ended; `up` and `down`."""

import json
import os
import pwd
import threading
from pathlib import Path
from typing import Any

import pytest

from gpudev.sdk import user_files
from gpudev.sdk.user_files import Credential
from support.client.cli_process import Cli
from support.client.fake_api import KEY, FakeApi

pytestmark = pytest.mark.slow

ME = pwd.getpwuid(os.getuid()).pw_name
STAND_IN = '''
"""Stands in for the server's program: says how it was called, and hands out the key it was given."""
import json, os, pathlib, sys
with pathlib.Path(os.environ["CALLS"]).open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1:3] == ["users", "ensure-owner"]:
    if os.environ.get("NO_KEY"):
        sys.exit("gpu-dev-server: the database does not answer")
    print(json.dumps({"username": sys.argv[3], "api_key": os.environ["NEXT_KEY"], "expires_at": None}))
else:
    print("the server was told", sys.argv[1:])
    sys.exit(9)
'''


@pytest.fixture
def calls(tmp_path: Path, lonely_cli: Cli, api: FakeApi) -> Path:
    """This person's own system runs here: the fake API, and a stand-in for the server's program."""
    overlay = tmp_path / "overlay" / "gpudev"
    overlay.mkdir(parents=True)
    (overlay / "__init__.py").write_text(
        '__path__ = __import__("pkgutil").extend_path(__path__, __name__)\n__version__ = "0"\n'
    )
    (overlay / "main.py").write_text(STAND_IN)
    source = Path(user_files.__file__).resolve().parents[2]
    state = tmp_path / "state"
    (state / "run").mkdir(parents=True)
    (state / "run" / "system.json").write_text(json.dumps({"api_url": api.url}))
    lonely_cli.env |= {
        "PYTHONPATH": f"{overlay.parent}{os.pathsep}{source}",
        "GPU_DEV_HOME": str(state),
        "CALLS": str(tmp_path / "calls"),
        "NEXT_KEY": KEY,
    }
    return tmp_path / "calls"


def called(calls: Path) -> list[list[str]]:
    return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def kept(home: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((home / ".gpu-dev" / "credentials").read_text())
    return stored


def test_the_owner_is_logged_in_without_asking(lonely_cli: Cli, api: FakeApi, home: Path, calls: Path) -> None:
    assert lonely_cli.run("list").returncode == 0
    assert called(calls) == [["users", "ensure-owner", ME, "--json"]]
    assert kept(home) == {api.url: {"api_key": KEY, "username": ME, "expires_at": None}}
    assert lonely_cli.run("list").returncode == 0
    assert len(called(calls)) == 1, "the key is kept"


def test_the_owners_next_login_names_the_key_it_replaces_and_tells_no_more_of_it(lonely_cli: Cli, calls: Path) -> None:
    old = lonely_cli.env["NEXT_KEY"] = "gpudev_" + "o" * 43
    assert lonely_cli.run("login").returncode == 0
    lonely_cli.env["NEXT_KEY"] = KEY
    assert lonely_cli.run("login").returncode == 0
    assert called(calls)[-1] == ["users", "ensure-owner", ME, "--json", "--instead-of", old[:16]]


def test_the_credentials_file_is_for_its_owner_alone(lonely_cli: Cli, home: Path, calls: Path) -> None:
    lonely_cli.run("login")
    path = home / ".gpu-dev" / "credentials"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["credentials"]


def test_an_ended_key_of_the_owner_is_replaced_without_a_word(
    lonely_cli: Cli, api: FakeApi, home: Path, calls: Path
) -> None:
    user_files.store_credential(home / ".gpu-dev" / "credentials", api.url, Credential("gpudev_old", ME))
    done = lonely_cli.run("list")
    assert done.returncode == 0
    assert done.stderr == ""
    assert kept(home)[api.url]["api_key"] == KEY


def test_an_ended_key_is_replaced_while_waiting_too(lonely_cli: Cli, api: FakeApi, calls: Path) -> None:
    lonely_cli.env["NEXT_KEY"] = "gpudev_fresh"
    assert lonely_cli.run("login").returncode == 0
    api.keys = {"gpudev_fresh"}
    job = api.add(status="queued")
    process = lonely_cli.start("connect", job.reservation_id)
    api.wait_for(lambda: bool(api.requests("GET", "/events")), "it waits")
    api.keys = {KEY}
    lonely_cli.env["NEXT_KEY"] = KEY
    api.change(job.reservation_id, status="cancelled")
    process.communicate(timeout=20)
    assert process.returncode == 6


def test_it_tries_only_once(lonely_cli: Cli, api: FakeApi, calls: Path) -> None:
    api.keys = set()
    done = lonely_cli.run("list")
    assert done.returncode == 3
    assert "gpu-dev login" in done.stderr
    assert len(called(calls)) == 2, "one key to begin with, one after the refusal"


def test_a_key_of_somebody_else_is_never_replaced_by_the_owners(
    lonely_cli: Cli, api: FakeApi, home: Path, calls: Path
) -> None:
    for username in ("somebody", None):
        user_files.store_credential(home / ".gpu-dev" / "credentials", api.url, Credential("gpudev_old", username))
        assert lonely_cli.run("list").returncode == 3
    assert called(calls) == []


def test_a_key_from_the_environment_is_never_replaced(lonely_cli: Cli, calls: Path) -> None:
    assert lonely_cli.run("list", env={"GPU_DEV_API_KEY": "gpudev_old"}).returncode == 3
    assert called(calls) == []


def test_a_key_from_the_environment_goes_before_the_stored_one(
    lonely_cli: Cli, api: FakeApi, home: Path, calls: Path
) -> None:
    user_files.store_credential(home / ".gpu-dev" / "credentials", api.url, Credential("gpudev_old", ME))
    assert lonely_cli.run("list", env={"GPU_DEV_API_KEY": f" {KEY}\n"}).returncode == 0


@pytest.mark.parametrize("key", ["two words", "schlüssel", "   ", "a\tb"])
def test_what_is_no_key_is_never_sent(lonely_cli: Cli, api: FakeApi, calls: Path, key: str) -> None:
    done = lonely_cli.run("list", env={"GPU_DEV_API_KEY": key})
    assert done.returncode == 3
    assert "is not a valid API key" in done.stderr
    assert not api.asked


def test_login_says_who_one_is(lonely_cli: Cli, api: FakeApi, calls: Path) -> None:
    assert lonely_cli.run("login").stdout == f"Logged in to {api.url} as {ME}.\n"
    shown = json.loads(lonely_cli.run("login", "--json").stdout)
    assert shown == {"api_url": api.url, "username": ME, "expires_at": None}


def test_a_system_that_gives_no_key_says_why(lonely_cli: Cli, calls: Path) -> None:
    done = lonely_cli.run("login", env={"NO_KEY": "1"})
    assert done.returncode == 3
    assert "the database does not answer" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_system_of_somebody_else_is_not_asked(lonely_cli: Cli, tmp_path: Path, calls: Path) -> None:
    os.chown(tmp_path / "state", 12345, 12345)
    done = lonely_cli.run("login")
    assert done.returncode == 3
    assert "gpu-dev login --key-stdin" in done.stderr
    assert called(calls) == []


def test_a_key_that_was_given_is_checked_and_stored(cli: Cli, api: FakeApi, home: Path) -> None:
    done = cli.run("login", "--key-stdin", stdin=f"{KEY}\n", env={"GPU_DEV_API_KEY": None})
    assert done.returncode == 0, done.stderr
    assert kept(home)[api.url]["api_key"] == KEY
    assert KEY not in done.stdout
    assert cli.run("list", env={"GPU_DEV_API_KEY": None}).returncode == 0


def test_a_key_that_does_not_work_is_not_stored(cli: Cli, home: Path) -> None:
    done = cli.run("login", "--key-stdin", stdin="gpudev_wrong\n")
    assert done.returncode == 3
    assert "gpudev_wrong" not in done.stderr
    assert not (home / ".gpu-dev").exists()


@pytest.mark.parametrize("text", ["", "\n", "two words\n"])
def test_no_key_on_standard_input_is_refused(cli: Cli, api: FakeApi, text: str) -> None:
    assert cli.run("login", "--key-stdin", stdin=text).returncode == 3
    assert not api.asked


def test_keys_of_other_apis_are_kept(cli: Cli, api: FakeApi, home: Path) -> None:
    path = home / ".gpu-dev" / "credentials"
    user_files.store_credential(path, "https://other.example.com", Credential("gpudev_other", "ada"))
    cli.run("login", "--key-stdin", stdin=f"{KEY}\n")
    assert set(kept(home)) == {"https://other.example.com", api.url}


def test_logins_at_the_same_time_lose_nothing(home: Path) -> None:
    path = home / ".gpu-dev" / "credentials"
    urls = [f"http://host-{number}" for number in range(12)]
    threads = [threading.Thread(target=user_files.store_credential, args=(path, url, Credential("k"))) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(kept(home)) == set(urls)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_credentials_that_others_can_read_are_refused(cli: Cli, api: FakeApi, home: Path, mode: int) -> None:
    path = home / ".gpu-dev" / "credentials"
    user_files.store_credential(path, api.url, Credential(KEY))
    path.chmod(mode)
    done = cli.run("list", env={"GPU_DEV_API_KEY": None})
    assert done.returncode == 8
    assert f"chmod 600 {path}" in done.stderr
    assert not api.asked


def test_a_broken_credentials_file_is_named_and_never_overwritten(cli: Cli, home: Path) -> None:
    path = home / ".gpu-dev" / "credentials"
    path.parent.mkdir()
    path.write_text("{")
    path.chmod(0o600)
    for arguments in (["list"], ["login", "--key-stdin"]):
        done = cli.run(*arguments, stdin=KEY, env={"GPU_DEV_API_KEY": None})
        assert done.returncode == 8
        assert str(path) in done.stderr
    assert path.read_text() == "{"


def test_elsewhere_nobody_is_logged_in_by_itself(cli: Cli) -> None:
    nobody: dict[str, str | None] = {"GPU_DEV_API_KEY": None}
    asked = cli.run("list", env=nobody)
    assert asked.returncode == 3
    assert "gpu-dev login" in asked.stderr
    done = cli.run("login", env=nobody)
    assert done.returncode == 3
    assert "--key-stdin" in done.stderr


@pytest.mark.parametrize("command", ["up", "down"])
def test_up_and_down_pass_every_argument_on(lonely_cli: Cli, calls: Path, command: str) -> None:
    for arguments in ([], ["--help"], ["--port", "7481", "--json"], ["--", "-x", "a b"]):
        done = lonely_cli.run(command, *arguments)
        assert done.returncode == 9, "the server's own exit code"
        assert called(calls)[-1] == [command, *arguments]
        assert "the server was told" in done.stdout


def test_a_key_that_another_of_our_programs_got_is_used_without_a_login(cli: Cli, api: FakeApi, home: Path) -> None:
    path = home / ".gpu-dev" / "credentials"
    login = {"method": "aws"}
    user_files.store_credential(path, api.url, Credential("gpudev_first", "ada", None, login))
    api.keys = {"gpudev_first"}
    job = api.add(status="queued")
    process = cli.start("connect", job.reservation_id, env={"GPU_DEV_API_KEY": None})
    api.wait_for(lambda: bool(api.requests("GET", "/events")), "it waits")
    api.keys = {"gpudev_second"}
    user_files.store_credential(path, api.url, Credential("gpudev_second", "ada", None, login))
    # Again and again: a stream that was asked for may not have begun yet.
    api.wait_for(lambda: api.cut_streams() or len(api.requests("GET", "/events")) > 1, "it waits on")
    api.change(job.reservation_id, status="cancelled")
    process.communicate(timeout=20)
    assert process.returncode == 6
    assert not api.requests("GET", "/methods")


def test_a_key_that_ended_and_cannot_be_got_again_asks_for_a_login(cli: Cli, api: FakeApi, home: Path) -> None:
    stored = Credential("gpudev_old", "ada", "2020-01-01T00:00:00+00:00", {"method": "aws"})
    user_files.store_credential(home / ".gpu-dev" / "credentials", api.url, stored)
    done = cli.run("list", env={"GPU_DEV_API_KEY": None})
    assert done.returncode == 3
    assert "has expired" in done.stderr
    assert "gpu-dev login" in done.stderr
    assert kept(home)[api.url]["api_key"] == "gpudev_old"


def test_logging_out_without_a_key_is_no_error(cli: Cli, api: FakeApi) -> None:
    done = cli.run("logout", env={"GPU_DEV_API_KEY": None})
    assert (done.returncode, done.stdout) == (0, f"No stored key for {api.url}.\n")
    assert not api.asked
