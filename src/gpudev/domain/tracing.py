"""Trace spans, by OpenTelemetry's model.

A reservation is a trace whose id is the reservation's id, so every process can add spans to it without coordination.
A request belongs to its caller's trace (W3C `traceparent`) or starts one; a submit is in both, linked.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

from gpudev.domain.ids import ReservationId

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class SpanRef(NamedTuple):
    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    ref: SpanRef
    begun_ns: int
    ended_ns: int
    parent_id: str | None = None
    is_server: bool = False
    is_error: bool = False
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    links: tuple[SpanRef, ...] = ()


def parse_traceparent(text: str) -> tuple[SpanRef, bool] | None:
    """The parent span, and whether its trace is recorded. None: not a valid traceparent."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return SpanRef(match[1], match[2]), bool(int(match[3], 16) & 1)


def reservation_root_span(reservation_id: ReservationId) -> SpanRef:
    return SpanRef(reservation_id.hex, _span_id(reservation_id, "reservation"))


def reservation_part_span(reservation_id: ReservationId, name: str) -> SpanRef:
    """Deterministic: the same part always gets the same span."""
    return SpanRef(reservation_id.hex, _span_id(reservation_id, name))


def to_nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000


def _span_id(reservation_id: ReservationId, name: str) -> str:
    return sha256(f"{reservation_id}/{name}".encode()).hexdigest()[:16]
