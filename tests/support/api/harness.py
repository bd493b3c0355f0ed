"""The API in front of a world: users with real keys, requests that are granted, refusals taken apart."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import httpx2
from fastapi import FastAPI

from gpudev.adapters.key_pairs import generate_key_pair
from gpudev.adapters.postgres.database.listener import PostgresReservationChanges
from gpudev.adapters.postgres.queue.estimates import PostgresQueuePlans
from gpudev.adapters.postgres.reservations.reservation_store import UnreleasedCache
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.app import create_app
from gpudev.api.authentication import ApiKeyIdentity
from gpudev.api.dependencies import ApiDependencies
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Invalid
from gpudev.domain.ids import ReservationId
from gpudev.domain.queue import PLANNING_LEASE
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.access import PublicKeySource
from gpudev.ports.clock import Clock
from gpudev.settings import Settings
from support.api import quick_apps  # noqa: F401
from support.processor_world import World


def public_key(name: str = "ada") -> str:
    """An Ed25519 public key that is well formed; nobody has its private half."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + hashlib.sha256(name.encode()).digest()
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


class PublishedKeys:
    """A KeySource that a test fills; GitHub itself is tried in test_github_keys."""

    def __init__(self) -> None:
        self.of: dict[str, Sequence[str]] = {}
        self.asked: list[str] = []

    async def public_keys(self, github_user: str) -> Sequence[str]:
        self.asked.append(github_user)
        if github_user not in self.of:
            raise Invalid(f"no GitHub user named {github_user!r}", field="github_user")
        return self.of[github_user]


def api_services(
    stores: Stores, changes: PostgresReservationChanges, keys: PublicKeySource, clock: Clock, settings: Settings
) -> ApiDependencies:
    return ApiDependencies(
        reservations=stores.reservations,
        unreleased=UnreleasedCache(stores.pool),
        plans=PostgresQueuePlans(stores.pool),
        estimates=stores.estimates,
        nodes=stores.nodes,
        cordons=stores.cordons,
        catalogue=stores.catalogue,
        users=stores.users,
        proxy_tokens=stores.proxy_tokens,
        addons=stores.addons,
        jupyter_keys=stores.addons,
        new_key_pair=generate_key_pair,
        disks=stores.disk_operations,
        disk_views=stores.disk_views,
        disk_locations=stores.disk_locations,
        accounts=stores.accounts,
        nonces=stores.nonces,
        administration=stores.administration,
        audit_log=stores.audit_log,
        trail=AuditTrail(stores.audit_log, clock),
        identity=ApiKeyIdentity(stores.users),
        keys=keys,
        changes=changes,
        clock=clock,
        settings=settings,
        ping=stores.pool.ping,
        is_planning=lambda: stores.leases.is_held(PLANNING_LEASE),
        plan_cache_seconds=0.0,
    )


@dataclass
class Api:
    services: ApiDependencies
    world: World
    published: PublishedKeys
    app: FastAPI
    clients: list[httpx2.AsyncClient] = field(default_factory=list)

    def anonymous(self, headers: dict[str, str] | None = None) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app)
        client = httpx2.AsyncClient(transport=transport, base_url="http://api", headers=headers)
        self.clients.append(client)
        return client

    async def secret(self, name: str = "ada", role: Role = Role.USER) -> str:
        users = self.services.users
        user = await users.find_user(name) or await users.add_user(name, role)
        return (await users.issue_key(user.user_id, None, "test")).secret

    async def as_user(self, name: str = "ada", role: Role = Role.USER) -> httpx2.AsyncClient:
        return self.anonymous({"Authorization": f"Bearer {await self.secret(name, role)}"})

    def restart(self, **changes: Any) -> None:
        """The same world behind a new app, whose services differ in this."""
        self.services = replace(self.services, **changes)
        self.app = create_app(self.services)


async def submit(client: httpx2.AsyncClient, **ask: Any) -> dict[str, Any]:
    """A reservation that is granted, as it was answered."""
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": "none", **ask}
    answer = await client.post("/v1/jobs/submit", json=body)
    assert answer.status_code == 202, answer.text
    view: dict[str, Any] = answer.json()
    return view


def refused(answer: httpx2.Response, status: int, code: str, field: str | None = None) -> str:
    """Assert a problem of this kind; answer its sentence."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"], problem["field"]) == (status, code, field)
    assert problem["request_id"] == answer.headers["x-request-id"]
    detail: str = problem["detail"]
    assert detail
    return detail


def identifier(view: dict[str, Any]) -> ReservationId:
    return ReservationId(UUID(view["reservation_id"]))
