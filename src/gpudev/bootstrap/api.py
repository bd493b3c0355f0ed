"""Builds the API's dependencies."""

import contextlib
from collections.abc import AsyncIterator

from gpudev.adapters.aws.login import AwsIdentityProvider
from gpudev.adapters.dcgm_exporter import DcgmUsage
from gpudev.adapters.github_keys import GitHubKeys
from gpudev.adapters.key_pairs import generate_key_pair
from gpudev.adapters.local.machine.gpu_use import NvmlUsage
from gpudev.adapters.oidc.issuer_keys import IssuerKeys
from gpudev.adapters.oidc.provider import OidcProvider
from gpudev.adapters.postgres.database.listener import PostgresAccessChanges, PostgresReservationChanges
from gpudev.adapters.postgres.stores import open_stores
from gpudev.api.authentication import ApiKeyIdentity
from gpudev.api.dependencies import ApiDependencies
from gpudev.bootstrap.service_runtime import DatabaseReadiness
from gpudev.domain.queue import PLANNING_LEASE
from gpudev.http_edge.audit import AuditTrail
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import GpuUsage
from gpudev.ports.tracing import NO_TRACER, Tracer
from gpudev.settings import Settings
from gpudev.workflows.login import InvitationLogin

_DATABASE_TIMEOUT_SECONDS = 5.0
"""Short, because a client waits for the response: a hanging database is reported as an error soon."""


def open_gpu_usage(settings: Settings) -> GpuUsage | None:
    """GPU usage from the cluster's DCGM exporters, or on one machine from its driver. None for nodes that are described
    in a file, because their GPUs are not this machine's."""
    if settings.dcgm_url:
        return DcgmUsage(settings.dcgm_url, settings.kubernetes.namespace, SystemClock())
    if settings.cluster == "local" and settings.nodes_file is None:
        return NvmlUsage(SystemClock())
    return None


@contextlib.asynccontextmanager
async def open_api_dependencies(settings: Settings, tracer: Tracer = NO_TRACER) -> AsyncIterator[ApiDependencies]:
    stores = open_stores(settings, max_connections=10, timeout_seconds=_DATABASE_TIMEOUT_SECONDS)
    changes = PostgresReservationChanges(settings.database)
    keys = GitHubKeys(settings.github_url)
    access = PostgresAccessChanges(settings.database)
    trail = AuditTrail(stores.audit_log, SystemClock())
    oidc = settings.oidc
    issuer = IssuerKeys(oidc.issuer) if oidc.issuer else None
    clock = SystemClock()
    aws_login = AwsIdentityProvider(settings, stores.nonces, clock) if settings.aws_login.accounts else None
    usage = open_gpu_usage(settings)
    changes.start()
    access.start()
    trail.start()
    try:
        yield ApiDependencies(
            reservations=stores.reservations,
            unreleased=stores.unreleased,
            plans=stores.plans,
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
            trail=trail,
            access_changes=access,
            identity=ApiKeyIdentity(stores.users),
            keys=keys,
            changes=changes,
            clock=clock,
            settings=settings,
            ping=DatabaseReadiness(stores).check,
            aws_login=aws_login,
            oidc_login=OidcProvider(oidc, issuer, stores.used_tokens, clock, settings.server_names)
            if issuer is not None
            else None,
            invitation_login=InvitationLogin(stores.invitations, clock),
            is_planning=lambda: stores.leases.is_held(PLANNING_LEASE),
            gpu_usage=usage,
            tracer=tracer,
        )
    finally:
        await access.close()
        await trail.close()
        await changes.close()
        await keys.close()
        if usage is not None:
            await usage.close()
        if issuer is not None:
            await issuer.close()
        if aws_login is not None:
            await aws_login.close()
        await stores.close()
