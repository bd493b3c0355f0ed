"""The ports that the API needs. `gpudev.bootstrap.api` provides and closes them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpudev.http_edge.audit import AuditTrail
from gpudev.http_edge.rate_limits import REQUEST_LIMITS, RequestLimits
from gpudev.ports.access import (
    NO_ACCESS_CHANGES,
    AccessChanges,
    AccountStore,
    AuditLog,
    IdentityProvider,
    IdToken,
    KeyAuthenticator,
    NonceStore,
    PublicKeySource,
    SignedRequest,
    UserAdministration,
    UserStore,
)
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import CatalogueStore, CordonStore, GpuUsage, NodeStore
from gpudev.ports.disks import DiskLocations, DiskOperationStore, DiskViews
from gpudev.ports.queue import EstimateStore, PlanStore
from gpudev.ports.reservations import ReservationChanges, ReservationStore, UnreleasedView
from gpudev.ports.sessions import AddonStore, JupyterSecretStore, ProxyTokenStore
from gpudev.ports.tracing import NO_TRACER, Tracer
from gpudev.settings import Settings


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    reservations: ReservationStore
    unreleased: UnreleasedView
    plans: PlanStore
    estimates: EstimateStore
    nodes: NodeStore
    cordons: CordonStore
    catalogue: CatalogueStore
    users: UserStore
    proxy_tokens: ProxyTokenStore
    addons: AddonStore
    jupyter_keys: JupyterSecretStore
    new_key_pair: Callable[[], tuple[str, str]]
    """A private key and its public half, in OpenSSH's formats."""
    disks: DiskOperationStore
    disk_views: DiskViews
    disk_locations: DiskLocations
    accounts: AccountStore
    nonces: NonceStore
    administration: UserAdministration
    audit_log: AuditLog
    trail: AuditTrail
    identity: KeyAuthenticator
    keys: PublicKeySource
    changes: ReservationChanges
    clock: Clock
    settings: Settings
    ping: Callable[[], Awaitable[None]]
    """A round trip to the database; raises when it does not answer."""
    is_planning: Callable[[], Awaitable[bool]]
    """Whether some processor's heartbeat is fresh."""
    aws_login: IdentityProvider[SignedRequest] | None = None
    """None: login with AWS is disabled."""
    access_changes: AccessChanges = NO_ACCESS_CHANGES
    """Reports changed keys and users."""
    oidc_login: IdentityProvider[IdToken] | None = None
    """None: login with OIDC is disabled."""
    invitation_login: IdentityProvider[str] | None = None
    """None: login with an invitation is disabled."""
    tracer: Tracer = NO_TRACER
    gpu_usage: GpuUsage | None = None
    """None: GPU usage is not measured."""
    request_limits: RequestLimits = REQUEST_LIMITS
    plan_cache_seconds: float = 0.05
    """How long views may use a published plan before checking for a newer one."""
