"""The API server's JSON: whole, or of listings only what somebody reads of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import msgspec
import orjson

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.domain.errors import Unavailable


class _ListMetadata(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - as on the wire
    next_page: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct):
    metadata: _ListMetadata
    items: msgspec.Raw = msgspec.Raw(b"null")


_LIST_DECODER = msgspec.json.Decoder(_RawList)


@dataclass(frozen=True, slots=True)
class ListResponse:
    resource_version: str
    continue_token: str
    """What to go on with; empty: this is the last."""
    _raw_items: msgspec.Raw

    def decode_items(self, shape: type | None = None) -> Sequence[Manifest]:
        try:
            return cast("Sequence[Manifest]", _items_decoder(shape).decode(self._raw_items) or ())
        except msgspec.DecodeError as error:
            raise _unreadable_error() from error


def decode_list(body: bytes) -> ListResponse:
    """Its objects are read when they are asked for: whoever needs the next page need not wait for that."""
    try:
        listed = _LIST_DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise _unreadable_error() from error
    return ListResponse(listed.metadata.resourceVersion, listed.metadata.next_page, listed.items)


def decode_json(body: bytes) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", orjson.loads(body))
    except ValueError as error:
        raise _unreadable_error() from error


@cache
def _items_decoder(shape: type | None) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[Any] | None if shape is None else list[shape] | None)  # type: ignore[valid-type]


def _unreadable_error() -> Unavailable:
    return Unavailable("the Kubernetes API server's answer cannot be read")
