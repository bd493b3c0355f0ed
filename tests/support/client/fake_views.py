"""Reservations and GPU types as the API would tell of them."""

import uuid
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from gpudev.wire.cluster import GpuAvailability
from gpudev.wire.reservations import JobView

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9zYkq7cbRyXc1fC2Fz0pWmYk3n0k1n5vYt3m1kQX9a"


def make_job(**changes: Any) -> JobView:
    now = datetime.now(UTC)
    reservation_id = str(changes.pop("reservation_id", uuid.uuid4()))
    base: dict[str, Any] = {field.name: None for field in fields(JobView)}
    base |= {
        "reservation_id": reservation_id,
        "job_id": reservation_id,
        "user": "ada",
        "status": "pending",
        "version": 1,
        "gpu_type": "a100",
        "gpu_count": 2,
        "node_count": 1,
        "duration_hours": 4.0,
        "priority": 0,
        "created_at": now,
        "namespace": "gpu-dev",
        "nodes": [],
        "pod_name": f"gpu-dev-{reservation_id[:8]}",
    }
    return JobView(**(base | changes))


def active(job: JobView, *, port: int = 31234, host_key: str = HOST_KEY) -> dict[str, Any]:
    """What a reservation gains when it becomes active."""
    now = datetime.now(UTC)
    return {
        "status": "active",
        "launched_at": now,
        "expires_at": now + timedelta(hours=job.duration_hours),
        "queue_position": None,
        "estimated_wait_minutes": None,
        "estimated_start_at": None,
        "eta": None,
        "wait_reason": None,
        "step": None,
        "node_ip": "127.0.0.1",
        "node_port": port,
        "ssh_user": "dev",
        "ssh_command": f"ssh -p {port} dev@127.0.0.1",
        "ssh_host_key": host_key,
    }


def make_type(name: str, **changes: Any) -> GpuAvailability:
    base: dict[str, Any] = {
        "gpu_type": name,
        "description": f"the {name}",
        "instance_type": "p4d.24xlarge",
        "max_per_node": 0 if name.startswith("cpu-") else 8,
        "multinode": False,
        "total_cluster_gpus": 8,
        "available_gpus": 8,
        "max_reservable": 8,
        "full_nodes_available": 1,
        "running_instances": 1,
        "desired_capacity": 1,
        "queue_length": 0,
        "estimated_wait_minutes": 0,
        "latest_wait_minutes": 0,
        "wait_reason": None,
        "simulated": True,
        "last_availability_update": datetime.now(UTC),
        "last_availability_updated_by": "test",
        "age_seconds": 1.0,
    }
    return GpuAvailability(**(base | changes))
