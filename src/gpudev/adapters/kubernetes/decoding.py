"""The API server's JSON: whole, or of listings only what somebody reads of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import msgspec
import orjson

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.domain.errors import Unavailable


class _Metadata(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - as on the wire
    next_page: str = msgspec.field(name="continue", default="")


class _Listed(msgspec.Struct):
    metadata: _Metadata
    items: msgspec.Raw = msgspec.Raw(b"null")


_LISTED = msgspec.json.Decoder(_Listed)


@dataclass(frozen=True, slots=True)
class Listing:
    resource_version: str
    next_page: str
    """What to go on with; empty: this is the last."""
    _unread: msgspec.Raw

    def items(self, shape: type | None = None) -> Sequence[Manifest]:
        try:
            return cast("Sequence[Manifest]", _items_of(shape).decode(self._unread) or ())
        except msgspec.DecodeError as error:
            raise _unreadable() from error


def read_listing(body: bytes) -> Listing:
    """Its objects are read when they are asked for: whoever needs the next page need not wait for that."""
    try:
        listed = _LISTED.decode(body)
    except msgspec.DecodeError as error:
        raise _unreadable() from error
    return Listing(listed.metadata.resourceVersion, listed.metadata.next_page, listed.items)


def read_json(body: bytes) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", orjson.loads(body))
    except ValueError as error:
        raise _unreadable() from error


@cache
def _items_of(shape: type | None) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[Any] | None if shape is None else list[shape] | None)  # type: ignore[valid-type]


def _unreadable() -> Unavailable:
    return Unavailable("the Kubernetes API server's answer cannot be read")
