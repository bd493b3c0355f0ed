"""Path, query and header parameters, and their description in the OpenAPI document."""

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import AfterValidator, BeforeValidator

from gpudev.domain.access.users import check_username
from gpudev.domain.errors import Invalid
from gpudev.domain.reservations.lifecycle import Status

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)")
_VISIBLE = re.compile(r"[!-~]+")
_TYPE_NAME = re.compile(r"[A-Za-z0-9._-]{1,50}")
_CURSOR = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MAX_ID = 2**63 - 1


def _check_iso(text: object) -> object:
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise ValueError("must be a time with its zone, like 2026-03-02T09:00:00Z")
    return text


def _to_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must be a time between the years 1 and 9999, in UTC") from error


def _check_visible(text: str) -> str:
    if not 1 <= len(text) <= 255 or not _VISIBLE.fullmatch(text):
        raise ValueError("must be 1 to 255 visible ASCII characters")
    return text


def check_type_name(text: str) -> str:
    if not _TYPE_NAME.fullmatch(text):
        raise ValueError("must be a GPU type's name, like h100")
    return text


def _check_owner(text: str) -> str:
    try:
        return check_username(text)
    except Invalid as error:
        raise ValueError("must be a user's name, or all") from error


UtcTime = Annotated[datetime, BeforeValidator(_check_iso), AfterValidator(_to_utc)]

JobId = Annotated[
    str,
    Path(
        description="A reservation's id, or the first 4 or more hex digits of it while only one of yours begins so",
        examples=["3f2a9c1e"],
        # Described here, checked where ids are understood, which has better words for what is wrong.
        json_schema_extra={"pattern": "^[0-9a-fA-F-]{4,36}$"},
    ),
]
Statuses = Annotated[list[Status], Query(alias="status", description="Only these statuses; repeat it for several")]
GpuTypeFilter = Annotated[
    Annotated[str, AfterValidator(check_type_name)] | None,
    Query(
        description="Only this GPU type",
        examples=["h100"],
        json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,50}$"},
    ),
]
CreatedAfter = Annotated[
    UtcTime | None, Query(description="Only those created at or after this time", examples=["2026-03-02T09:00:00Z"])
]
CreatedBefore = Annotated[
    UtcTime | None, Query(description="Only those created before this time", examples=["2026-03-03T09:00:00Z"])
]
Days = Annotated[float, Query(gt=0, le=3650, allow_inf_nan=False, description="How many days back")]
Hours = Annotated[float, Query(gt=0, le=72, allow_inf_nan=False, description="How many hours ahead")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before")]
Limit = Annotated[int, Query(ge=1, le=200, description="At most so many on this page")]
AllUsers = Annotated[bool, Query(alias="all", description="Everybody's reservations (operators only)")]
OwnerFilter = Annotated[
    Annotated[str, AfterValidator(_check_owner)] | None,
    Query(
        alias="user",
        description="Another user's reservations, or `all`: everybody's (operators only)",
        examples=["ada"],
        json_schema_extra={"pattern": "^[A-Za-z0-9][A-Za-z0-9._@+-]{0,254}$"},
    ),
]
IdempotencyKey = Annotated[
    Annotated[str, AfterValidator(_check_visible)] | None,
    Header(
        description="Any text of your own, 1 to 255 visible ASCII characters. The same key and body again give the "
        "same reservation again (with `Idempotent-Replay: true`); with another body they are refused.",
        examples=["8e0e5f0a-2c0e-4f5c-9f6e-2d7a4f1b6c11"],
        json_schema_extra={"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    ),
]
OperationIdempotencyKey = Annotated[
    Annotated[str, AfterValidator(_check_visible)] | None,
    Header(
        description="Any text of your own, 1 to 255 visible ASCII characters. The same key and request again give the "
        "same operation again (with `Idempotent-Replay: true`); with another request they are refused.",
        examples=["8e0e5f0a-2c0e-4f5c-9f6e-2d7a4f1b6c11"],
        json_schema_extra={"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    ),
]
DiskName = Annotated[
    str,
    Path(
        description="A disk's name",
        examples=["data"],
        # As with ids: described here, checked where names are understood.
        json_schema_extra={"pattern": "^[a-z0-9-]{1,63}$"},
    ),
]
OperationRef = Annotated[
    str,
    Path(
        description="An operation's id, or its first 4 or more hex digits",
        examples=["7d1c55e0"],
        json_schema_extra={"pattern": "^[0-9a-fA-F-]{4,36}$"},
    ),
]
SnapshotRef = Annotated[
    str | None,
    Query(
        description="Of this snapshot (its id, or its first 4 or more hex digits); absent: the last listing",
        examples=["9b0a77c2"],
        json_schema_extra={"pattern": "^[0-9a-fA-F-]{4,36}$"},
    ),
]
IncludeDeleted = Annotated[bool, Query(description="Also look among those that were deleted and can be restored")]
LastEventId = Annotated[
    int,
    Header(
        description="The `id` of the last event that was received: only later lines of the history are sent",
        ge=0,
        le=_MAX_ID,
    ),
]


def encode_cursor(seq: int) -> str:
    return base64.urlsafe_b64encode(f"seq:{seq}".encode()).decode().rstrip("=")


def decode_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if _CURSOR.fullmatch(text):
        try:
            decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except binascii.Error:
            decoded = b""
        name, _, digits = decoded.partition(b":")
        if name == b"seq" and digits.isdigit() and len(digits) < 20 and int(digits) <= _MAX_ID:
            return int(digits)
    raise Invalid("cursor is none that a page was given; leave it out to begin anew", field="cursor")
