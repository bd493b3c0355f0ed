"""Admins: the catalogue and the settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpudev.api.app import create_app
from gpudev.domain.access.users import Role
from gpudev.settings import DatabaseSettings, OidcSettings
from support.api.harness import Api, identifier, public_key, refused, submit


@pytest.fixture
async def root(api: Api) -> httpx2.AsyncClient:
    return await api.as_user("root", Role.ADMIN)


async def ask_for(api: Api, client: httpx2.AsyncClient, **ask: Any) -> httpx2.Response:
    api.app = create_app(api.services)  # nothing remembered from before
    body = {"ssh_public_keys": [public_key()], "disk_name": "none", "gpu_count": 1, **ask}
    return await api.anonymous(dict(client.headers)).post("/v1/jobs/submit", json=body)


async def test_a_type_that_is_not_offered_cannot_be_asked_for_and_what_is_there_goes_on(
    api: Api, ada: httpx2.AsyncClient, root: httpx2.AsyncClient
) -> None:
    running = await submit(ada, gpu_count=8)
    await api.world.turn()
    waiting = await submit(ada, gpu_count=16)
    changed = await root.patch("/v1/gpu-types/h100", json={"is_active": False})
    assert (changed.status_code, changed.json()["is_active"]) == (200, False)
    said = refused(await ask_for(api, ada, gpu_type="h100"), 422, "invalid", "gpu_type")
    assert said.startswith("GPU type 'h100' is not offered at present; available: ")
    assert "h100" not in said.partition("available: ")[2].split(", ")
    refused(await ask_for(api, ada), 422, "invalid", "gpu_type")
    shown = (await ada.get("/v1/gpu/availability")).json()["gpu_types"]
    assert "h100" not in [one["gpu_type"] for one in shown]
    await api.world.turn()
    assert (await api.world.get(identifier(running))).status == "active"
    await api.world.cancel(identifier(running))
    await api.world.turn()
    assert (await api.world.get(identifier(waiting))).status == "active"
    await root.patch("/v1/gpu-types/h100", json={"is_active": True})
    assert (await ask_for(api, ada, gpu_type="h100")).status_code == 202


async def test_a_type_is_described_and_the_rest_stays(root: httpx2.AsyncClient) -> None:
    before = {one["name"]: one for one in (await root.get("/v1/gpu-types")).json()["gpu_types"]}["h100"]
    changed = await root.patch("/v1/gpu-types/h100", json={"description": "the new ones"})
    assert changed.json() == before | {"description": "the new ones"}


async def test_what_is_no_change_or_no_type_is_refused(root: httpx2.AsyncClient) -> None:
    refused(await root.patch("/v1/gpu-types/h100", json={}), 422, "invalid", "is_active")
    refused(await root.patch("/v1/gpu-types/h100", json={"description": "a\nb"}), 422, "invalid", "description")
    refused(await root.patch("/v1/gpu-types/h100", json={"max_gpus": 80}), 422, "invalid", "max_gpus")
    refused(await root.patch("/v1/gpu-types/abacus", json={"is_active": True}), 404, "not_found")
    entries = (await root.get("/v1/audit", params={"action": "PATCH"})).json()["entries"]
    assert ("abacus (active)", "not_found") in [(entry["target"], entry["outcome"]) for entry in entries]


async def test_settings_are_shown_without_secrets(api: Api) -> None:
    planted = "planted-7f3a"
    api.restart(
        settings=replace(
            api.services.settings,
            database=DatabaseSettings(password=planted),
            oidc=OidcSettings(client_secret=planted),
            github_url=f"https://me:{planted}@git.example/x",
            tls_cert=Path("certificate.pem"),
        )
    )
    root = await api.as_user("root", Role.ADMIN)
    answer = await root.get("/v1/settings")
    assert answer.status_code == 200
    assert planted not in answer.text
    shown = answer.json()["settings"]
    assert (shown["database.password"], shown["oidc.client_secret"]) == ("set", "set")
    assert (shown["github_url"], shown["tls_cert"]) == ("https://git.example/x", "certificate.pem")
    assert shown["api_key_ttl"] == 7200
    assert shown["limits.default_hours"] == api.services.settings.limits.default_hours
