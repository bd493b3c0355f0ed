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
        raise ValueError("must be a time with a zone, e.g. 2026-03-02T09:00:00Z")
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
        raise ValueError("must be a GPU type, e.g. h100")
    return text


def _check_owner(text: str) -> str:
    try:
        return check_username(text)
    except Invalid as error:
        raise ValueError("must be a username or 'all'") from error


UtcTime = Annotated[datetime, BeforeValidator(_check_iso), AfterValidator(_to_utc)]

JobId = Annotated[
    str,
    Path(
        description="A reservation id, or at least its first 4 hex digits if they are unique among your reservations",
        examples=["3f2a9c1e"],
        # Only documented here: the workflow that parses ids has better error messages.
        json_schema_extra={"pattern": "^[0-9a-fA-F-]{4,36}$"},
    ),
]
Statuses = Annotated[
    list[Status], Query(alias="status", description="Only these statuses; repeat the parameter for several")
]
GpuTypeFilter = Annotated[
    Annotated[str, AfterValidator(check_type_name)] | None,
    Query(
        description="Only this GPU type",
        examples=["h100"],
        json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,50}$"},
    ),
]
CreatedAfter = Annotated[
    UtcTime | None,
    Query(description="Only reservations created at or after this time", examples=["2026-03-02T09:00:00Z"]),
]
CreatedBefore = Annotated[
    UtcTime | None, Query(description="Only reservations created before this time", examples=["2026-03-03T09:00:00Z"])
]
Days = Annotated[float, Query(gt=0, le=3650, allow_inf_nan=False, description="Number of days back")]
Hours = Annotated[float, Query(gt=0, le=72, allow_inf_nan=False, description="Number of hours ahead")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page")]
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number on this page")]
AllUsers = Annotated[bool, Query(alias="all", description="All users' reservations (operators only)")]
OwnerFilter = Annotated[
    Annotated[str, AfterValidator(_check_owner)] | None,
    Query(
        alias="user",
        description="Reservations of this user, or of `all` users (operators only)",
        examples=["ada"],
        json_schema_extra={"pattern": "^[A-Za-z0-9][A-Za-z0-9._@+-]{0,254}$"},
    ),
]
IdempotencyKey = Annotated[
    Annotated[str, AfterValidator(_check_visible)] | None,
    Header(
        description="Any text, 1 to 255 visible ASCII characters. Repeating the key with the same body returns the "
        "same reservation (with `Idempotent-Replay: true`); with another body it is an error.",
        examples=["8e0e5f0a-2c0e-4f5c-9f6e-2d7a4f1b6c11"],
        json_schema_extra={"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    ),
]
OperationIdempotencyKey = Annotated[
    Annotated[str, AfterValidator(_check_visible)] | None,
    Header(
        description="Any text, 1 to 255 visible ASCII characters. Repeating the key with the same request returns the "
        "same operation (with `Idempotent-Replay: true`); with another request it is an error.",
        examples=["8e0e5f0a-2c0e-4f5c-9f6e-2d7a4f1b6c11"],
        json_schema_extra={"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    ),
]
DiskName = Annotated[
    str,
    Path(
        description="A disk's name",
        examples=["data"],
        # As with ids: only documented here.
        json_schema_extra={"pattern": "^[a-z0-9-]{1,63}$"},
    ),
]
OperationRef = Annotated[
    str,
    Path(
        description="An operation id, or at least its first 4 hex digits",
        examples=["7d1c55e0"],
        json_schema_extra={"pattern": "^[0-9a-fA-F-]{4,36}$"},
    ),
]
SnapshotRef = Annotated[
    str | None,
    Query(
        description="A snapshot id, or at least its first 4 hex digits; by default the latest listing",
        examples=["9b0a77c2"],
        json_schema_extra={"pattern": "^[0-9a-fA-F-]{4,36}$"},
    ),
]
IncludeDeleted = Annotated[bool, Query(description="Include deleted disks that can still be restored")]
LastEventId = Annotated[
    int,
    Header(
        description="The `id` of the last event received: only later events are sent",
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
    raise Invalid("invalid cursor; omit it to start from the first page", field="cursor")
