"""Estimates and plans, made for tests."""

from datetime import datetime, timedelta
from typing import Any

from gpudev.wire.queue import PlannedStart, PlanNode, PlanStep
from gpudev.wire.reservations import EtaView


def make_eta(now: datetime, *minutes: float | None) -> EtaView:
    """Expected, the interval's two ends and latest, in minutes from now."""
    expected, begin, end, latest = (None if m is None else now + timedelta(minutes=m) for m in minutes)
    assert latest is not None
    return EtaView(
        expected=expected, interval_from=begin, interval_to=end, confidence=0.8, latest=latest, margin_seconds=120.0
    )


def make_node(name: str, total: int, begins: datetime, *steps: tuple[float, int], offers: bool = True) -> PlanNode:
    """`steps`: after how many hours so many are in use."""
    told = [PlanStep(at=begins + timedelta(hours=hours), used_gpus=used) for hours, used in steps]
    return PlanNode(name=name, total_gpus=total, offers=offers, steps=told)


def make_start(position: int, **changes: Any) -> PlannedStart:
    base: dict[str, Any] = {
        "position": position,
        "gpu_count": 2,
        "node_count": 1,
        "latest": None,
        "expected": None,
        "nodes": [],
        "mine": False,
        "reservation_id": None,
        "reason": "0 of 2 GPUs free on any h100 node",
    }
    return PlannedStart(**(base | changes))
