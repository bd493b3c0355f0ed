"""Which API is spoken to."""

import pytest

from gpudev.cli.exit_codes import ExitCode, exit_code_of
from gpudev.sdk.api_address import check_url, choose_address, is_loopback, region_of
from gpudev.sdk.errors import ClientError
from gpudev.sdk.user_files import Preferences

EAST, WEST, EMBEDDED = "https://east.example.com", "https://west.example.com", "http://127.0.0.1:7480"
BOTH = Preferences(api_urls=(("us-east-2", EAST), ("us-west-1", WEST)))


@pytest.mark.parametrize(
    ("env", "region"),
    [
        ({}, "us-east-2"),
        ({"AWS_DEFAULT_REGION": "us-west-1"}, "us-west-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-1"}, "eu-west-1"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "us-west-1"}, "us-west-1"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": ""}, "us-east-2"),
    ],
)
def test_the_region_follows_the_documented_priority(env: dict[str, str], region: str) -> None:
    assert region_of(env) == region


@pytest.mark.parametrize(
    ("option", "env", "known", "embedded", "url"),
    [
        ("http://o", {"GPU_DEV_API_URL": "http://v"}, BOTH, EMBEDDED, "http://o"),
        (None, {"GPU_DEV_API_URL": "http://v"}, BOTH, EMBEDDED, "http://v"),
        (None, {"GPU_DEV_API_URL": ""}, BOTH, EMBEDDED, EAST),
        (None, {}, BOTH, EMBEDDED, EAST),
        (None, {"AWS_DEFAULT_REGION": "us-west-1"}, BOTH, EMBEDDED, WEST),
        (None, {"AWS_REGION": "eu-west-1"}, BOTH, EMBEDDED, EMBEDDED),
        (None, {}, Preferences(), EMBEDDED, EMBEDDED),
        (None, {}, BOTH, None, EAST),
    ],
)
def test_the_most_particular_address_wins(
    option: str | None, env: dict[str, str], known: Preferences, embedded: str | None, url: str
) -> None:
    assert choose_address(option, env, known, embedded).url == url


def test_without_any_address_the_next_steps_are_named() -> None:
    with pytest.raises(ClientError) as raised:
        choose_address(None, {"AWS_REGION": "eu-west-1"}, BOTH, None)
    assert exit_code_of(raised.value) is ExitCode.LOCAL
    assert "eu-west-1" in raised.value.message
    assert "gpu-dev up" in raised.value.next_step
    assert "gpu-dev config set api_url" in raised.value.next_step


def test_who_has_never_named_a_region_hears_of_none() -> None:
    with pytest.raises(ClientError, match=r"no API address is set, and "):
        choose_address(None, {}, Preferences(), None)


def test_the_embedded_system_is_recognised_however_it_was_named() -> None:
    assert choose_address("http://127.0.0.1:7480/", {}, BOTH, EMBEDDED).embedded
    assert choose_address(None, {}, Preferences(), EMBEDDED).embedded
    assert not choose_address("http://127.0.0.1:7481", {}, BOTH, EMBEDDED).embedded
    assert not choose_address(EAST, {}, BOTH, EMBEDDED).embedded


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://host", "http://host"),
        ("https://Host.Example.COM/", "https://host.example.com"),
        ("http://host:7480/", "http://host:7480"),
        ("http://host/prefix/", "http://host/prefix"),
        (" http://host ", "http://host"),
        ("HTTP://host", "http://host"),
        ("http://[::1]:7480", "http://[::1]:7480"),
    ],
)
def test_an_address_has_one_spelling(text: str, url: str) -> None:
    assert check_url(text, "here") == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:7480",
        "ftp://host",
        "http://",
        "http:///path",
        "http://host:port",
        "http://host:70000",
        "http://user@host",
        "http://user:secret@host",
        "http://host?query",
        "http://host#fragment",
        "http://ho st",
        "http://höst",
        "http://[::1",
        "javascript:alert(1)",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientError) as raised:
        check_url(text, "here")
    assert exit_code_of(raised.value) is ExitCode.USAGE


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_this_machine_is_known_by_its_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["127.evil.example", "10.0.0.1", "example.com", "127.0.0.1.example.com"])
def test_nobody_else_passes_for_this_machine(host: str) -> None:
    assert not is_loopback(host)
