"""Certificate pins: which key each API address must present, and the check.

A pin is only added from an invitation link, never on first use.
"""

import ssl
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from gpudev import paths
from gpudev.sdk.user_files import file_lock, read_object, write_object

_SEQUENCE = 0x30
_VERSION = 0xA0
_FIELDS_BEFORE_KEY = 5
"""Serial number, signature algorithm, issuer, validity, subject."""


class MalformedCertificate(ValueError):
    """Not a DER certificate."""


def pins_file(env: Mapping[str, str]) -> Path:
    return paths.personal_dir(env) / "trusted-servers.json"


def find_pin(env: Mapping[str, str], api_url: str) -> str | None:
    found = read_object(pins_file(env)).get(api_url)
    return found if isinstance(found, str) else None


def store_pin(env: Mapping[str, str], api_url: str, fingerprint: str | None) -> None:
    """None: remove the pin; the machine's certificate authorities apply again."""
    path = pins_file(env)
    with file_lock(path):
        pins = read_object(path)
        pins.pop(api_url, None)
        if fingerprint is not None:
            pins[api_url] = fingerprint
        write_object(path, pins)


def pinning_context() -> ssl.SSLContext:
    """For connections whose certificate is checked by `matches_pin` before anything is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def matches_pin(certificate: bytes | None, fingerprint: str) -> bool:
    """Whether this certificate (DER) from a completed TLS handshake has the key with this fingerprint."""
    if certificate is None:
        return False
    try:
        return fingerprint_of(certificate) == fingerprint
    except MalformedCertificate:
        return False


def fingerprint_of(certificate: bytes) -> str:
    """Of the public key: SHA-256 over its SubjectPublicKeyInfo, in base64url. Raises MalformedCertificate."""
    content, _ = _element_content(certificate, 0, _SEQUENCE)
    position, _ = _element_content(certificate, content, _SEQUENCE)
    if certificate[position] == _VERSION:
        position = _element_end(certificate, position)
    for _ in range(_FIELDS_BEFORE_KEY):
        position = _element_end(certificate, position)
    _element_content(certificate, position, _SEQUENCE)
    key = certificate[position : _element_end(certificate, position)]
    return urlsafe_b64encode(sha256(key).digest()).decode().rstrip("=")


def _element_content(data: bytes, position: int, tag: int) -> tuple[int, int]:
    """Start and end of the content of the DER element at this position."""
    try:
        if data[position] != tag:
            raise MalformedCertificate(f"unexpected element at {position}")
        length, begin = data[position + 1], position + 2
        if length >= 0x80:
            size = length & 0x7F
            length, begin = int.from_bytes(data[begin : begin + size], "big"), begin + size
    except IndexError as error:
        raise MalformedCertificate("truncated") from error
    if begin + length > len(data):
        raise MalformedCertificate("truncated")
    return begin, begin + length


def _element_end(data: bytes, position: int) -> int:
    if position >= len(data):
        raise MalformedCertificate("truncated")
    return _element_content(data, position, data[position])[1]
