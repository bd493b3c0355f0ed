"""What is taken as a public key: keys, and nothing that rides along with one."""

import base64
from collections.abc import Sequence

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.domain.access.ssh_keys import check_github_user, parse_public_key, parse_public_keys, usable_public_keys
from gpudev.domain.errors import Invalid
from support.api.harness import public_key


def blob(*fields: bytes) -> str:
    return base64.b64encode(b"".join(len(f).to_bytes(4) + f for f in fields)).decode()


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ssh-ed25519", {}),
        ("ssh-rsa", {"key_size": 2048}),
        ("ecdsa-sha2-nistp256", {}),
        ("ecdsa-sha2-nistp384", {}),
        ("ecdsa-sha2-nistp521", {}),
    ],
)
def test_keys_that_people_make_are_taken_without_their_comment(algorithm: str, options: dict[str, int]) -> None:
    made = asyncssh.generate_private_key(algorithm, comment="ada@laptop", **options)
    line = made.export_public_key().decode()
    assert "ada@laptop" in line
    taken = parse_public_key(line)
    assert taken == " ".join(line.split()[:2])
    assert asyncssh.import_public_key(taken) == made.convert_to_public()


def test_keys_on_security_tokens_are_taken() -> None:
    token = blob(b"sk-ssh-ed25519@openssh.com", bytes(32), b"ssh:")
    assert parse_public_key(f"sk-ssh-ed25519@openssh.com {token} me") == f"sk-ssh-ed25519@openssh.com {token}"
    token = blob(b"sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", b"\x04" + bytes(64), b"ssh:")
    assert parse_public_key(f"sk-ecdsa-sha2-nistp256@openssh.com {token}").endswith(token)


ED25519 = blob(b"ssh-ed25519", bytes(32))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("ssh-ed25519", "missing"),
        ("ssh-ed25519 ", "missing"),
        ("hello world", "begin with"),
        (f"ssh-dss {ED25519}", "begin with"),
        (f"ssh-ed25519-cert-v01@openssh.com {ED25519}", "begin with"),
        (f'command="reboot" ssh-ed25519 {ED25519}', "options"),
        (f"no-pty ssh-ed25519 {ED25519}", "options"),
        (f"# ssh-ed25519 {ED25519}", "begin with"),
        (f"ssh-ed25519 {ED25519}\nssh-ed25519 {ED25519}", "line break"),
        (f"ssh-ed25519 {ED25519} comment\rmore", "line break"),
        (f"ssh-ed25519 {ED25519} \x00", "control"),
        (f"ssh-ed25519 {ED25519} \u2028 more", "line break"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "private key"),
        ("ssh-ed25519 !!!!", "base64"),
        ("ssh-ed25519 AAAA=A", "base64"),
        ("ssh-ed25519 ünïcode", "base64"),
        ("ssh-ed25519 AAAA", "cut short"),
        (f"ssh-ed25519 {ED25519[:-8]}", "cut short"),
        (f"ssh-rsa {ED25519}", "type it names"),
        (f"ssh-ed25519 {blob(b'ssh-ed25519', bytes(31))}", "Ed25519"),
        (f"ssh-ed25519 {blob(b'ssh-ed25519', bytes(32), b'more')}", "Ed25519"),
        (f"ssh-rsa {blob(b'ssh-rsa', b'e')}", "RSA"),
        (f"ssh-rsa {blob(b'ssh-rsa', bytes([1, 0, 1]), bytes([255] * 128))}", "1024 bits"),
        (f"ssh-rsa {blob(b'ssh-rsa', bytes([1, 0, 1]), bytes([255] * 4096))}", "32768 bits"),
        (f"ecdsa-sha2-nistp256 {blob(b'ecdsa-sha2-nistp256', b'nistp384', bytes([4] * 97))}", "curve"),
        (f"ecdsa-sha2-nistp256 {blob(b'ecdsa-sha2-nistp256', b'nistp256', bytes(65))}", "point"),
        ("ssh-ed25519 " + "A" * 9000, "longer"),
    ],
)
def test_everything_else_is_refused_with_what_is_wrong(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_public_key(line)


@given(st.text(max_size=300))
def test_any_text_is_a_key_or_a_value_error(text: str) -> None:
    for line in (text, f"ssh-ed25519 {text}", f"ssh-rsa {base64.b64encode(text.encode('utf-8', 'replace')).decode()}"):
        try:
            taken = parse_public_key(line)
        except ValueError:
            continue
        assert taken.count(" ") == 1
        assert taken.isprintable()


def test_a_bad_key_among_good_ones_is_named_by_its_place() -> None:
    with pytest.raises(Invalid, match=r"ssh_public_keys\[1\]") as caught:
        parse_public_keys([public_key(), "nonsense"])
    assert caught.value.field == "ssh_public_keys"


def test_of_a_list_that_others_keep_only_usable_keys_count() -> None:
    lines: Sequence[str] = [public_key("a"), "ssh-dss AAAA", "", public_key("a") + " again", public_key("b")]
    assert usable_public_keys(lines) == (public_key("a"), public_key("b"))


@pytest.mark.parametrize("name", ["octocat", "a", "Ada-Lovelace", "ada_acme", "0day", "x" * 39])
def test_names_github_gives_out_are_taken(name: str) -> None:
    assert check_github_user(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", "a.b", "a/b", "a b", "a\n", "x" * 40, "..", "a?x=1", "a#b", "ä", "a%2f"]
)
def test_no_other_name_ever_becomes_part_of_an_address(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_github_user(name)
    assert caught.value.field == "github_user"
