"""Public SSH keys: parsing and checking what may log in to a dev server.

A key is parsed to its last field, so that only a key is stored: no options ("command=…"), no second line, no comment.
This module knows nothing about owners.
"""

import base64
import binascii
import re
from collections.abc import Iterable

from gpudev.domain.errors import Invalid

MAX_KEYS = 50
MAX_KEY_LENGTH = 8192
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 16384
_CURVE_POINT_BYTES = {"nistp256": 65, "nistp384": 97, "nistp521": 133}
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_GITHUB_USER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38})")


def parse_public_keys(lines: Iterable[str], *, field: str = "ssh_public_keys") -> tuple[str, ...]:
    """Every line as "type base64", each key once, in the order given. Raises Invalid naming the first bad line."""
    keys: dict[str, None] = {}
    for index, line in enumerate(lines):
        try:
            keys[parse_public_key(line)] = None
        except ValueError as error:
            raise Invalid(f"invalid public key {field}[{index}]: {error}", field=field) from error
    if len(keys) > MAX_KEYS:
        raise Invalid(f"{field} has {len(keys)} keys; at most {MAX_KEYS} are allowed", field=field)
    return tuple(keys)


def usable_public_keys(lines: Iterable[str]) -> tuple[str, ...]:
    """The usable keys among these lines, each once, at most MAX_KEYS: for lists that we do not control."""
    keys: dict[str, None] = {}
    for line in lines:
        try:
            keys[parse_public_key(line)] = None
        except ValueError:
            continue
    return tuple(keys)[:MAX_KEYS]


def parse_public_key(line: str) -> str:
    """One OpenSSH public key as "type base64". Raises ValueError with the reason."""
    if len(line) > MAX_KEY_LENGTH:
        raise ValueError(f"it is longer than {MAX_KEY_LENGTH} characters")
    if "PRIVATE KEY" in line:
        raise ValueError("it is a private key; keep it to yourself and send the .pub file")
    stripped = line.strip()
    if not stripped:
        raise ValueError("it is empty")
    if _CONTROL.search(stripped):
        raise ValueError("it holds a line break or another control character")
    kind, *words = stripped.split(maxsplit=2)
    if kind not in _CHECKS:
        raise ValueError(f"it must begin with one of {', '.join(_CHECKS)} (options are not taken)")
    if not words:
        raise ValueError("the key itself is missing after its type")
    _check_blob(kind, words[0])
    return f"{kind} {words[0]}"


def check_github_user(name: str) -> str:
    """Raises Invalid unless GitHub could have issued this name: it becomes part of a URL."""
    if not _GITHUB_USER.fullmatch(name):
        raise Invalid(
            f"invalid GitHub user name {name[:80]!r} (expected 1 to 39 letters, digits and '-', not starting with '-')",
            field="github_user",
        )
    return name


def _check_blob(kind: str, text: str) -> None:
    try:
        blob = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("its second word is not base64") from error
    fields = _split(blob)
    if not fields or fields[0] != kind.encode():
        raise ValueError(f"its data is not of the type it names ({kind})")
    _CHECKS[kind](kind, fields[1:])


def _split(blob: bytes) -> list[bytes]:
    """The length-prefixed fields of a key's data. They must fill it exactly."""
    fields, at = [], 0
    while at < len(blob):
        end = at + 4 + int.from_bytes(blob[at : at + 4])
        if at + 4 > len(blob) or end > len(blob):
            raise ValueError("its data is cut short")
        fields.append(blob[at + 4 : end])
        at = end
    return fields


def _check_rsa(_kind: str, fields: list[bytes]) -> None:
    if len(fields) != 2:
        raise ValueError("its data is not that of an RSA key")
    bits = int.from_bytes(fields[1]).bit_length()
    if not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
        raise ValueError(f"it has {bits} bits; RSA keys need {MIN_RSA_BITS} to {MAX_RSA_BITS}")


def _check_ed25519(kind: str, fields: list[bytes]) -> None:
    if len(fields) != _own_fields(kind, 1) or len(fields[0]) != 32:
        raise ValueError("its data is not that of an Ed25519 key")


def _check_ecdsa(kind: str, fields: list[bytes]) -> None:
    curve = "nistp256" if kind.startswith("sk-") else kind.rpartition("-")[2]
    if len(fields) != _own_fields(kind, 2) or fields[0] != curve.encode():
        raise ValueError("its data is not that of an ECDSA key on its curve")
    if len(fields[1]) != _CURVE_POINT_BYTES[curve] or fields[1][0] != 4:
        raise ValueError("its data is not a point on its curve")


def _own_fields(kind: str, count: int) -> int:
    """Keys on a security token have one more field: the application."""
    return count + 1 if kind.startswith("sk-") else count


_CHECKS = {
    "ssh-ed25519": _check_ed25519,
    "ssh-rsa": _check_rsa,
    "ecdsa-sha2-nistp256": _check_ecdsa,
    "ecdsa-sha2-nistp384": _check_ecdsa,
    "ecdsa-sha2-nistp521": _check_ecdsa,
    "sk-ssh-ed25519@openssh.com": _check_ed25519,
    "sk-ecdsa-sha2-nistp256@openssh.com": _check_ecdsa,
}
