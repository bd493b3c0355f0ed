"""Sections of the settings, with their fields, defaults and meanings."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_network

from gpudev.domain.access.login import get_sts_endpoint
from gpudev.domain.errors import Invalid
from gpudev.domain.notifications import NotificationKind

API_ROLE, PROCESSOR_ROLE = "gpudev_api", "gpudev_processor"
RECONCILER_ROLE, MIGRATOR_ROLE = "gpudev_reconciler", "gpudev_migrator"
"""The database's roles; gpudev.adapters.postgres.database.roles has their rights."""
_LONGEST_WATCH = timedelta(seconds=10)
_MIN_STALE_AFTER = timedelta(seconds=2)
"""A watch lasts whole seconds, at least one."""
_WHOLE_NODE_RESOURCE = re.compile(r"hugepages-[0-9]+[KMG]i|[a-z0-9.-]+/[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """`host` may be a folder with PostgreSQL's unix socket."""

    host: str = "localhost"
    port: int = 5432
    user: str = "gpudev"
    password: str | None = None
    database: str = "gpudev"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of one request and one user. None: no limit."""

    default_hours: float = 8.0
    max_hours: float = 24.0
    max_hours_with_extensions: float = 48.0
    max_queued_per_user: int | None = None
    max_gpus_per_user: int | None = None


@dataclass(frozen=True, slots=True)
class FairShareSettings:
    """The order within one priority. Off: first come, first served."""

    on: bool = False
    half_life_hours: float = 168.0
    """Usage of this age counts half."""
    patience_hours: float = 24.0
    """A request that has waited this long goes first, whatever its user's usage, so that no request waits forever."""


@dataclass(frozen=True, slots=True)
class TimingSettings:
    preparing_deadline: timedelta = timedelta(minutes=15)
    warning_minutes: tuple[int, ...] = (30, 15, 5)
    sweep_every: timedelta = timedelta(seconds=5)
    lease_ttl: timedelta = timedelta(seconds=5)
    retry_backoff: timedelta = timedelta(seconds=2)
    """After the n-th failure: this times 2^(n-1)."""
    orphan_grace: timedelta = timedelta(seconds=30)
    """How long an orphan is only reported before it is removed."""
    preparing_margin: timedelta = timedelta(minutes=1)
    """The planner's allowance for preparing a dev server. Its time begins when it is ready."""
    teardown_margin: timedelta = timedelta(seconds=30)
    """The planner's allowance for releasing GPUs after a reservation's planned end."""
    disk_deadline: timedelta = timedelta(hours=1)
    """How long making a disk ready may take (restoring a large one) before its reservation fails. The preparing
    deadline begins when the disk is ready."""

    @property
    def reservation_overhead(self) -> timedelta:
        """The most that a reservation occupies GPUs besides its hours."""
        return self.preparing_margin + self.teardown_margin


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """Reconciliation of records with the cluster and the cloud."""

    node_group_prefix: str = "pytorch-gpu-dev"
    """Node groups are named PREFIX-gpu-nodes-TYPE… and PREFIX-cpu-nodes…; others are ignored."""
    volume_gb_month: float = 0.08
    """Price of a GB of volume per month, for `report orphans`."""
    snapshot_gb_month: float = 0.05


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Access to the cluster, its nodes, and the objects of dev servers. Empty: none."""

    access: str = "auto"
    """Where credentials come from: kubeconfig, in-cluster or eks. auto: the first of these that exists."""
    kubeconfig: str = ""
    context: str = ""
    eks_cluster_name: str = ""
    namespace: str = "gpu-dev"
    gpu_type_label: str = "GpuType"
    """The node label with the GPU type. Without it, the catalogue maps the instance type."""
    gpu_resource: str = "nvidia.com/gpu"
    whole_node_resources: tuple[str, ...] = ()
    """Resources that cannot be shared, such as vpc.amazonaws.com/efa: for dev servers with all GPUs of a node."""
    tolerated_taints: tuple[str, ...] = ("nvidia.com/gpu",)
    """Taint keys that dev servers tolerate; any other NoSchedule or NoExecute taint closes a node."""
    node_address: str = "external"
    """The preferred kind of node address for users: external, internal or hostname; otherwise the next one it has."""
    default_image: str = "pytorch/pytorch:2.8.0-cuda12.9-cudnn9-devel"
    init_image: str = "gpu-dev/dev-server:0.1.0"
    """Our own image, which adds the SSH server to any image."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    runtime_class: str = ""
    allowed_cidrs: tuple[str, ...] = ()
    """Private networks that dev servers may reach; by default the internet and their own gang only."""
    denied_cidrs: tuple[str, ...] = ()
    """Networks with public addresses that dev servers may not reach, such as the API server's public endpoint, or pods
    and nodes with public IPv6 addresses."""
    termination_grace: timedelta = timedelta(seconds=20)
    """How long processes in an ending dev server have to save their work."""
    workspace_size: str = "100Gi"
    shared_storage_class: str = ""
    """A ReadWriteMany storage class for /workspace. Empty: scratch space."""
    efs_file_system_id: str = ""
    efs_security_group_id: str = ""
    efs_subnet_ids: tuple[str, ...] = ()
    disk_driver: str = ""
    """The CSI driver that attaches volumes. Empty: the cloud's own."""
    disk_zone_label: str = ""
    """The driver's node label with the zone."""
    disk_fs_type: str = "ext4"
    """The file system of new disks. Formatted disks are not changed."""
    stale_after: timedelta = timedelta(seconds=15)
    """After this long without a response of the API server, nothing is decided."""
    node_lost_after: timedelta = timedelta(minutes=5)
    """A dev server on a node that has not answered for this long is lost."""
    unschedulable_after: timedelta = timedelta(minutes=1)
    """A pod that is unschedulable for this long has failed."""
    image_pull_patience: timedelta = timedelta(minutes=2)
    """How long pulling an image may keep failing."""

    def __post_init__(self) -> None:
        _check_one_of("GPU_DEV_KUBE_ACCESS", self.access, ("auto", "kubeconfig", "in-cluster", "eks"))
        _check_one_of("GPU_DEV_NODE_ADDRESS", self.node_address, ("external", "internal", "hostname"))
        if self.stale_after < _MIN_STALE_AFTER:
            raise ValueError(f"GPU_DEV_STALE_AFTER must be at least {_MIN_STALE_AFTER.total_seconds():g} seconds")
        for name in self.whole_node_resources:
            if not _WHOLE_NODE_RESOURCE.fullmatch(name) or name == self.gpu_resource:
                allowed = "devices like vpc.amazonaws.com/efa, and huge pages like hugepages-2Mi"
                raise ValueError(f"invalid GPU_DEV_WHOLE_NODE_RESOURCES entry {name!r} (expected {allowed})")

    @property
    def watch_timeout(self) -> timedelta:
        """How long one watch lasts before it is resumed. The API server responds shortly before its end, so this is
        less than `stale_after`."""
        return min(_LONGEST_WATCH, self.stale_after * 2 / 3)


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """The AWS account's region. Credentials and AWS_ENDPOINT_URL come from the usual AWS configuration."""

    region: str = "us-east-2"


@dataclass(frozen=True, slots=True)
class GcpSettings:
    """The Google Cloud project. Credentials come from the usual Google Cloud configuration."""

    project: str = ""
    """Empty: the credentials' own."""
    region: str = ""
    """Only node groups and disks of this region and its zones count. Empty: all regions."""
    disk_type: str = "pd-balanced"
    """The type of new disks."""


@dataclass(frozen=True, slots=True)
class AwsLoginSettings:
    """Login with AWS credentials. Without accounts: disabled."""

    accounts: tuple[str, ...] = ()
    """Numbers of the accounts whose roles are accepted."""
    roles: tuple[str, ...] = ("SSOCloudDevGpuReservation",)
    """Roles, or permission sets of AWS IAM Identity Center, that may log in."""
    regions: tuple[str, ...] = ("us-east-2",)
    """Regions of STS for which login requests may be signed. Other AWS partitions have their own regions."""
    sts_url: str = ""
    """Address of STS if not the public one (a VPC endpoint). Never taken from a request."""

    def __post_init__(self) -> None:
        if not all(len(account) == 12 and account.isascii() and account.isdigit() for account in self.accounts):
            raise ValueError("GPU_DEV_AWS_LOGIN_ACCOUNTS must be account numbers of 12 digits")
        if self.accounts and not (all(self.roles) and self.roles and self.regions):
            raise ValueError(
                "GPU_DEV_AWS_LOGIN_ACCOUNTS requires GPU_DEV_AWS_LOGIN_ROLES and GPU_DEV_AWS_LOGIN_REGIONS"
            )
        if self.sts_url and not re.match(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]", self.sts_url):
            raise ValueError("GPU_DEV_AWS_LOGIN_STS_URL must begin with https:// (http:// on this machine only)")
        for region in self.regions:
            try:
                get_sts_endpoint(region)
            except Invalid as error:
                raise ValueError(f"GPU_DEV_AWS_LOGIN_REGIONS: {error}") from error


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Login with an OpenID Connect provider. Without an issuer: disabled."""

    issuer: str = ""
    """Its address, exactly as in its tokens."""
    client_id: str = ""
    """The client (audience) of the tokens: a public client that may redirect to http://127.0.0.1 on any port."""
    client_secret: str = ""
    """Only for providers that require one for native apps. It is not secret: every client gets it."""
    scopes: tuple[str, ...] = ("openid", "email", "profile", "offline_access")
    username_claim: str = "email"
    """The claim with the username. An email must be verified."""
    groups_claim: str = "groups"
    admin_groups: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    """Without any of these three, everyone whom the issuer authenticates may log in, and roles are set in gpu-dev.
    Otherwise roles come from the groups; those in none of them are users, or, with user groups, cannot log in."""
    email_domains: tuple[str, ...] = ()
    """Only verified emails of these domains. None: any domain."""

    def __post_init__(self) -> None:
        if self.issuer and not self.client_id:
            raise ValueError("GPU_DEV_OIDC_ISSUER requires GPU_DEV_OIDC_CLIENT_ID")
        if self.issuer and not re.match(r"https://[^/@]|http://(localhost|127\.0\.0\.1|\[::1\])(:|/|$)", self.issuer):
            raise ValueError("GPU_DEV_OIDC_ISSUER must be an https address (http only on this machine)")
        if self.issuer and "openid" not in self.scopes:
            raise ValueError("GPU_DEV_OIDC_SCOPES must include openid")


@dataclass(frozen=True, slots=True)
class RequestGuardSettings:
    """Trusted proxies, CORS and connection limits of the API."""

    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-For is trusted."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API from a browser. None: only its own."""
    keep_alive: timedelta = timedelta(seconds=75)
    """How long a connection may be idle between two requests. It must be longer than the idle time-out of the proxy in
    front (usually 60 seconds): otherwise the proxy may reuse a connection that we are closing, and return 502."""
    max_connections: int = 2000
    """Concurrent connections per process; beyond that the response is 503."""

    def __post_init__(self) -> None:
        for text in self.trusted_proxies:
            try:
                ip_network(text, strict=False)
            except ValueError as error:
                raise ValueError(
                    f"invalid GPU_DEV_TRUSTED_PROXIES entry {text!r} (expected an address or network)"
                ) from error


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Notifications. Without a URL: disabled."""

    secret_urls: tuple[str, ...] = field(default=(), repr=False)
    """Apprise URLs, separated by spaces or lines."""
    urls_file: str = ""
    """A file with more of them."""
    on: tuple[str, ...] = ("ready", "warning", "failed", "ended")
    """The kinds of notifications that are sent."""

    def __post_init__(self) -> None:
        for kind in self.on:
            _check_one_of("GPU_DEV_NOTIFY_ON", kind, tuple(NotificationKind))


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """ssh and Jupyter through HTTPS. Limits are per process."""

    url: str = ""
    """Public address of `gpu-dev-server proxy`, if not the API's: https://HOST[:PORT]."""
    host: str = "127.0.0.1"
    port: int = 7481
    """Where `gpu-dev-server proxy` listens."""
    most_per_user: int = 256
    most: int = 2000
    """Concurrent sessions."""
    ping_every: timedelta = timedelta(seconds=20)
    """Shorter than the idle time-out of proxies in between (often 60 seconds)."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("https://", "http://")):
            raise ValueError("GPU_DEV_PROXY_URL must begin with https:// (or http://)")


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"invalid {name} {value!r} (expected {', '.join(allowed)})")
