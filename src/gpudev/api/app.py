"""The REST API: puts endpoints, workflows and ports together. It decides nothing and keeps no state of its own."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Lifespan

from gpudev import __version__
from gpudev.api.auth_door import Door
from gpudev.api.auth_methods import login_methods
from gpudev.api.auth_oidc import TokenEndpoints
from gpudev.api.authentication import Authentication
from gpudev.api.caching import OneAtATime, Remembered, RememberedPlans
from gpudev.api.dependencies import Services
from gpudev.api.health import HealthEndpoints
from gpudev.api.http import responses
from gpudev.api.http.middleware import Requests
from gpudev.api.http.openapi import DESCRIPTION, document
from gpudev.api.http.routing import check_routes
from gpudev.api.keys import KeyEndpoints
from gpudev.api.nodes import NodeEndpoints
from gpudev.api.proxying import ProxyEndpoints
from gpudev.api.request_guard import Guard
from gpudev.api.routes.cluster import ClusterEndpoints
from gpudev.api.routes.disks import DiskEndpoints
from gpudev.api.routes.login import AuthEndpoints
from gpudev.api.routes.reservations import JobEndpoints
from gpudev.api.routes.sessions import JupyterEndpoints, UserEndpoints
from gpudev.api.routes.system import ConfigurationEndpoints
from gpudev.api.routes.users import AdminEndpoints
from gpudev.api.stats import StatsEndpoints
from gpudev.http_edge.client_ip import ClientAddresses
from gpudev.http_edge.rate_limits import Places, TokenBuckets
from gpudev.ports.reservations import UnreleasedView
from gpudev.workflows.cancelling import Cancelling
from gpudev.workflows.cluster.cluster_views import Surveying
from gpudev.workflows.cluster.eta_report import Judging
from gpudev.workflows.disks.requests import ManagingDisks
from gpudev.workflows.foreseeing import Foreseeing
from gpudev.workflows.login import LoggingIn
from gpudev.workflows.prioritising import Prioritising
from gpudev.workflows.reservation_views import Viewing
from gpudev.workflows.reservations.reservation_actions import Extending
from gpudev.workflows.reservations.reservation_stream import Watching
from gpudev.workflows.reservations.submission import Submission
from gpudev.workflows.sessions.addons import Furnishing
from gpudev.workflows.sessions.jupyter_access import Linking
from gpudev.workflows.sessions.ssh_tokens import Proxying

_CATALOGUE_SECONDS = 1.0
_LINK_TTL = timedelta(minutes=2)
_NODES_SECONDS = 0.2
"""What is free follows from reservations, which are read anew; nodes come and go rarely."""


def create_app(services: Services, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    app = FastAPI(
        title="gpu-dev",
        version=__version__,
        description=DESCRIPTION,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    unreleased = OneAtATime(services.unreleased)
    app.state.guard = guard = _guard(services)
    furnishing = _furnishing(services)
    for router in (
        _jobs(services, unreleased).router(),
        _proxy(services).router(),
        UserEndpoints(furnishing).router(),
        JupyterEndpoints(furnishing, _linking(services), services.settings.proxy.url).router(),
        _cluster(services, unreleased).router(),
        NodeEndpoints(services.cordons, services.clock).router(),
        DiskEndpoints(_disks(services)).router(),
        StatsEndpoints(Judging(services.estimates, services.clock)).router(),
        KeyEndpoints(services.users, guard.authentication, services.settings.api_key_ttl).router(),
        _administration(services, guard).router(),
        ConfigurationEndpoints(services.catalogue, services.settings).router(),
        _auth(services).router(),
        _tokens(services).router(),
        HealthEndpoints(services.ping, services.is_planning).router(),
    ):
        check_routes(router)
        app.include_router(router)
    responses.install(app)
    app.add_middleware(Requests, tracer=services.tracer)
    if services.settings.guarding.cors_origins:
        _open_to_pages(app, services.settings.guarding.cors_origins)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


def _open_to_pages(app: FastAPI, origins: Sequence[str]) -> None:
    """For pages of these origins. They send the key in a header; no cookie speaks for anybody here."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PATCH", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Request-ID"],
        expose_headers=["X-Request-ID", "Location", "Idempotent-Replay", "Retry-After"],
    )


def _guard(services: Services) -> Guard:
    limits = services.settings.guarding
    return Guard(
        authentication=Authentication(
            services.identity,
            services.clock,
            changes=services.access_changes,
            wrong_keys=TokenBuckets(limits.wrong_keys_burst, limits.wrong_keys_per_minute),
        ),
        addresses=ClientAddresses(limits.trusted_proxies),
        trail=services.trail,
        clock=services.clock,
        logins=TokenBuckets(limits.login_burst, limits.login_per_minute),
        rotations=TokenBuckets(limits.rotations_burst, limits.rotations_per_minute),
        streams_of_user=Places(limits.streams_per_user),
        streams_from_address=Places(limits.streams_per_address),
    )


def _administration(services: Services, guard: Guard) -> AdminEndpoints:
    return AdminEndpoints(
        services.users, services.administration, services.audit_log, services.trail, guard.authentication
    )


def _auth(services: Services) -> AuthEndpoints:
    logging_in = LoggingIn(services.accounts, services.users, services.clock, services.settings.api_key_ttl)
    return AuthEndpoints(
        methods=login_methods(services.settings),
        aws=services.aws_login,
        nonces=services.nonces,
        door=Door(logging_in),
        clock=services.clock,
    )


def _tokens(services: Services) -> TokenEndpoints:
    settings = services.settings
    ending = LoggingIn(services.accounts, services.users, services.clock, settings.api_key_ttl)
    return TokenEndpoints(
        oidc=services.oidc_login,
        invitations=services.invitation_login,
        oidc_door=Door(ending),
        invitation_door=Door(replace(ending, ttl=settings.invited_key_ttl)),
    )


def _jobs(services: Services, unreleased: UnreleasedView) -> JobEndpoints:
    settings = services.settings
    # Whoever decides something by the plan reads it anew; whoever only looks may see what was true a moment ago.
    plans = RememberedPlans(services.plans, services.plans_seconds)
    namespace = settings.kubernetes.namespace
    viewing = Viewing(plans, services.clock, settings.timing, namespace, services.gpu_usage)
    return JobEndpoints(
        reservations=services.reservations,
        users=services.users,
        viewing=viewing,
        submission=Submission(
            reservations=services.reservations,
            unreleased=unreleased,
            nodes=Remembered(services.nodes.nodes, _NODES_SECONDS).get,
            catalogue=Remembered(services.catalogue.catalogue, _CATALOGUE_SECONDS).get,
            keys=services.keys,
            clock=services.clock,
            limits=settings.limits,
            plans=services.plans,
            timing=settings.timing,
            fixed_cluster=settings.cluster == "local",
            has_disks=settings.has_disks,
            disk_limits=settings.disks,
            disk_places=services.disk_places,
        ),
        cancelling=Cancelling(services.reservations, services.clock),
        extending=Extending(
            services.reservations,
            unreleased,
            services.nodes,
            services.plans,
            services.clock,
            settings.limits,
            settings.timing,
        ),
        prioritising=Prioritising(services.reservations, services.clock),
        watching=Watching(services.reservations, services.changes, viewing),
        interiors=services.interiors,
    )


def _proxy(services: Services) -> ProxyEndpoints:
    settings = services.settings.proxy
    proxying = Proxying(services.reservations, services.proxy_tokens, services.clock, settings.token_ttl)
    return ProxyEndpoints(services.reservations, proxying, settings.url)


def _linking(services: Services) -> Linking:
    return Linking(services.reservations, services.interiors, services.proxy_tokens, services.clock, _LINK_TTL)


def _furnishing(services: Services) -> Furnishing:
    return Furnishing(services.reservations, services.interiors, services.keys, services.clock, services.new_key_pair)


def _disks(services: Services) -> ManagingDisks:
    settings = services.settings
    return ManagingDisks(services.disks, services.disk_views, services.clock, settings.disks, settings.has_disks)


def _cluster(services: Services, unreleased: UnreleasedView) -> ClusterEndpoints:
    settings = services.settings
    surveying = Surveying(
        unreleased,
        services.nodes,
        services.catalogue,
        services.plans,
        services.clock,
        settings.limits,
        settings.timing,
    )
    foreseeing = Foreseeing(unreleased, services.nodes, services.plans, services.clock, settings.timing)
    return ClusterEndpoints(surveying, foreseeing, services.is_planning)
