"""The REST API's app: connects endpoints, workflows and ports. No decisions, no state of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Lifespan

from gpudev.api.authentication import Authentication
from gpudev.api.caching import CachedPlans, CachedValue, SerializedUnreleasedView
from gpudev.api.dependencies import ApiDependencies
from gpudev.api.http import responses
from gpudev.api.http.middleware import RequestMiddleware
from gpudev.api.http.openapi import DESCRIPTION, openapi_document
from gpudev.api.http.routing import check_routes
from gpudev.api.request_guard import RequestGuard
from gpudev.api.routes.cluster import ClusterEndpoints, EtaStatisticsEndpoints, NodeEndpoints
from gpudev.api.routes.disks import DiskEndpoints
from gpudev.api.routes.login import KeyIssuer, LoginEndpoints, TokenLoginEndpoints, list_login_methods
from gpudev.api.routes.pages import page_routes
from gpudev.api.routes.reservations import JobEndpoints
from gpudev.api.routes.sessions import CollaboratorEndpoints, JupyterEndpoints, SshTokenEndpoints
from gpudev.api.routes.system import ConfigurationEndpoints, HealthEndpoints
from gpudev.api.routes.users import AdminEndpoints, KeyEndpoints
from gpudev.http_edge.client_ip import ClientIpResolver
from gpudev.http_edge.rate_limits import ConcurrencyLimits, TokenBuckets
from gpudev.ports.reservations import UnreleasedView
from gpudev.version import __version__
from gpudev.workflows.cluster.cluster_views import ClusterPlanViews, ClusterStatusViews
from gpudev.workflows.cluster.eta_report import EtaReports
from gpudev.workflows.disks.requests import DiskRequests
from gpudev.workflows.login import Login
from gpudev.workflows.reservation_views import ReservationViews
from gpudev.workflows.reservations.reservation_actions import Cancellation, Extension, Prioritisation
from gpudev.workflows.reservations.reservation_stream import ReservationStream
from gpudev.workflows.reservations.submission import Submission
from gpudev.workflows.sessions.addons import AddonChanges
from gpudev.workflows.sessions.jupyter_access import JupyterLinks
from gpudev.workflows.sessions.ssh_tokens import SshTokens

_CATALOGUE_CACHE_SECONDS = 1.0
_LINK_TTL = timedelta(minutes=2)
_NODES_CACHE_SECONDS = 0.2
"""Nodes change rarely; free GPUs follow from the reservations, which are never cached."""


def create_app(services: ApiDependencies, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    app = FastAPI(
        title="gpu-dev",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's page loads Swagger UI from another host
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    unreleased = SerializedUnreleasedView(services.unreleased)
    app.state.guard = guard = _request_guard(services)
    app.state.stopping = asyncio.Event()
    addon_changes = _addons(services)
    for router in (
        _jobs(services, unreleased).router(),
        _proxy(services).router(),
        CollaboratorEndpoints(addon_changes).router(),
        JupyterEndpoints(addon_changes, _jupyter_links(services), services.settings.proxy.url).router(),
        _cluster(services, unreleased).router(),
        NodeEndpoints(services.cordons, services.clock).router(),
        DiskEndpoints(_disks(services)).router(),
        EtaStatisticsEndpoints(EtaReports(services.estimates, services.clock)).router(),
        KeyEndpoints(services.users, guard.authentication, services.settings.api_key_ttl).router(),
        _administration(services, guard).router(),
        ConfigurationEndpoints(services.catalogue, services.settings).router(),
        _login(services).router(),
        _token_login(services).router(),
        HealthEndpoints(services.ping, services.is_planning).router(),
    ):
        check_routes(router)
        app.include_router(router)
    app.router.routes.extend(page_routes())
    responses.install_error_handlers(app)
    app.add_middleware(RequestMiddleware, tracer=services.tracer)
    if services.settings.guarding.cors_origins:
        _allow_origins(app, services.settings.guarding.cors_origins)
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]
    return app


def _allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """CORS for pages of these origins. They send the key in a header; the API uses no cookies."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PATCH", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Request-ID"],
        expose_headers=["X-Request-ID", "Location", "Idempotent-Replay", "Retry-After"],
    )


def _request_guard(services: ApiDependencies) -> RequestGuard:
    limits = services.request_limits
    return RequestGuard(
        authentication=Authentication(
            services.identity,
            services.clock,
            changes=services.access_changes,
            wrong_keys=TokenBuckets(*limits.wrong_keys),
        ),
        addresses=ClientIpResolver(services.settings.guarding.trusted_proxies),
        trail=services.trail,
        clock=services.clock,
        logins=TokenBuckets(*limits.logins),
        rotations=TokenBuckets(*limits.rotations),
        streams_of_user=ConcurrencyLimits(limits.streams_per_user),
        streams_from_address=ConcurrencyLimits(limits.streams_per_address),
    )


def _administration(services: ApiDependencies, guard: RequestGuard) -> AdminEndpoints:
    return AdminEndpoints(
        services.users, services.administration, services.audit_log, services.trail, guard.authentication
    )


def _login(services: ApiDependencies) -> LoginEndpoints:
    login = Login(services.accounts, services.users, services.clock, services.settings.api_key_ttl)
    return LoginEndpoints(
        methods=list_login_methods(services.settings),
        aws=services.aws_login,
        nonces=services.nonces,
        key_issuer=KeyIssuer(login),
        clock=services.clock,
    )


def _token_login(services: ApiDependencies) -> TokenLoginEndpoints:
    settings = services.settings
    login = Login(services.accounts, services.users, services.clock, settings.api_key_ttl)
    return TokenLoginEndpoints(
        oidc=services.oidc_login,
        invitations=services.invitation_login,
        oidc_key_issuer=KeyIssuer(login),
        invitation_key_issuer=KeyIssuer(replace(login, ttl=settings.invited_key_ttl)),
    )


def _jobs(services: ApiDependencies, unreleased: UnreleasedView) -> JobEndpoints:
    settings = services.settings
    # Views may use a plan that is a moment old; decisions read it from the database.
    plans = CachedPlans(services.plans, services.plan_cache_seconds)
    namespace = settings.kubernetes.namespace
    views = ReservationViews(plans, services.clock, settings.timing, namespace, services.gpu_usage)
    return JobEndpoints(
        reservations=services.reservations,
        users=services.users,
        views=views,
        submission=Submission(
            reservations=services.reservations,
            unreleased=unreleased,
            nodes=CachedValue(services.nodes.nodes, _NODES_CACHE_SECONDS).get_value,
            catalogue=CachedValue(services.catalogue.catalogue, _CATALOGUE_CACHE_SECONDS).get_value,
            keys=services.keys,
            clock=services.clock,
            limits=settings.limits,
            plans=services.plans,
            timing=settings.timing,
            fixed_cluster=settings.cluster == "local",
            has_disks=settings.has_disks,
            has_images=settings.cluster != "local",
            disk_limits=settings.disks,
            disk_locations=services.disk_locations,
        ),
        cancellation=Cancellation(services.reservations, services.clock),
        extension=Extension(
            services.reservations,
            unreleased,
            services.nodes,
            services.plans,
            services.clock,
            settings.limits,
            settings.timing,
        ),
        prioritisation=Prioritisation(services.reservations, services.clock),
        stream=ReservationStream(services.reservations, services.changes, views),
        addons=services.addons,
    )


def _proxy(services: ApiDependencies) -> SshTokenEndpoints:
    settings = services.settings.proxy
    ssh_tokens = SshTokens(services.reservations, services.proxy_tokens, services.clock)
    return SshTokenEndpoints(services.reservations, ssh_tokens, settings.url)


def _jupyter_links(services: ApiDependencies) -> JupyterLinks:
    return JupyterLinks(services.reservations, services.addons, services.proxy_tokens, services.clock, _LINK_TTL)


def _addons(services: ApiDependencies) -> AddonChanges:
    return AddonChanges(services.reservations, services.addons, services.keys, services.clock, services.new_key_pair)


def _disks(services: ApiDependencies) -> DiskRequests:
    settings = services.settings
    return DiskRequests(services.disks, services.disk_views, services.clock, settings.disks, settings.has_disks)


def _cluster(services: ApiDependencies, unreleased: UnreleasedView) -> ClusterEndpoints:
    settings = services.settings
    status_views = ClusterStatusViews(
        unreleased,
        services.nodes,
        services.catalogue,
        services.plans,
        services.clock,
        settings.limits,
        settings.timing,
    )
    plan_views = ClusterPlanViews(unreleased, services.nodes, services.plans, services.clock, settings.timing)
    return ClusterEndpoints(status_views, plan_views, services.is_planning)
