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
"""The database's roles, for those who use them (gpudev.adapters.postgres.database.roles says what each may do)."""
_LONGEST_WATCH = timedelta(seconds=10)
_MIN_STALE_AFTER = timedelta(seconds=2)
"""Watches last whole seconds, and at least one."""
_WHOLE_NODE_RESOURCE = re.compile(r"hugepages-[0-9]+[KMG]i|[a-z0-9.-]+/[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """`host` may be a folder: then PostgreSQL is reached through its unix socket in there."""

    host: str = "localhost"
    port: int = 5432
    user: str = "gpudev"
    password: str | None = None
    database: str = "gpudev"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What one request and one user may ask for. None: no limit."""

    default_hours: float = 8.0
    max_hours: float = 24.0
    max_hours_with_extensions: float = 48.0
    max_queued_per_user: int | None = None
    max_gpus_per_user: int | None = None


@dataclass(frozen=True, slots=True)
class FairShareSettings:
    """Who goes first among those of one priority. Off: who came first."""

    on: bool = False
    half_life_hours: float = 168.0
    """What was used so long ago counts half."""
    patience_hours: float = 24.0
    """Whoever has waited so long goes first, whatever they used: nobody waits forever."""


@dataclass(frozen=True, slots=True)
class TimingSettings:
    preparing_deadline: timedelta = timedelta(minutes=15)
    warning_minutes: tuple[int, ...] = (30, 15, 5)
    sweep_every: timedelta = timedelta(seconds=5)
    lease_ttl: timedelta = timedelta(seconds=5)
    retry_backoff: timedelta = timedelta(seconds=2)
    """After the n-th failure: this times 2^(n-1)."""
    orphan_grace: timedelta = timedelta(seconds=30)
    """How long something without a live owner is only reported before it is removed."""
    preparing_margin: timedelta = timedelta(minutes=1)
    """How long preparing a dev server may take by plan: its time begins when it is ready."""
    teardown_margin: timedelta = timedelta(seconds=30)
    """How long after its planned end a reservation's GPUs may still be busy being freed."""
    disk_deadline: timedelta = timedelta(hours=1)
    """How long making a disk ready may take (restoring a large one) before its reservation fails. The preparing
    deadline begins when the disk is ready."""

    @property
    def reservation_overhead(self) -> timedelta:
        """What one reservation takes at most beside the hours it was given."""
        return self.preparing_margin + self.teardown_margin


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """How what is recorded is kept true to what there is."""

    node_group_prefix: str = "pytorch-gpu-dev"
    """Groups of nodes are called PREFIX-gpu-nodes-TYPE… and PREFIX-cpu-nodes…; apart from any other prefix."""
    groups_every: timedelta = timedelta(minutes=1)
    """How often the processor asks the cloud for its groups of nodes."""
    disks_every: timedelta = timedelta(minutes=5)
    """How often the processor compares the recorded disks with the cloud's volumes."""
    stale_request_after: timedelta = timedelta(minutes=5)
    """A waiting request that a working processor has not looked at for this long is sent again, then cancelled."""
    volume_gb_month: float = 0.08
    """What a GB of a volume costs in a month, for the report of orphans."""
    snapshot_gb_month: float = 0.05


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """How the cluster is reached, what its nodes mean and what dev servers are made of. An empty text: none."""

    access: str = "auto"
    """Where credentials come from: kubeconfig, in-cluster or eks; auto: the first of these that there is."""
    kubeconfig: str = ""
    context: str = ""
    eks_cluster_name: str = ""
    namespace: str = "gpu-dev"
    gpu_type_label: str = "GpuType"
    """The node label that names the GPU type; without it, the instance type tells through the catalogue."""
    gpu_resource: str = "nvidia.com/gpu"
    whole_node_resources: tuple[str, ...] = ()
    """What cannot be shared, like vpc.amazonaws.com/efa: who has all GPUs of a node gets all that it has of these."""
    tolerated_taints: tuple[str, ...] = ("nvidia.com/gpu",)
    """Keys of taints that dev servers tolerate; any other NoSchedule or NoExecute taint closes a node."""
    node_address: str = "external"
    """Which of a node's addresses people connect to first: external, internal or hostname; else the next one."""
    default_image: str = "pytorch/pytorch:2.8.0-cuda12.9-cudnn9-devel"
    init_image: str = "gpu-dev/dev-server:0.1.0"
    """Our own image, which brings the SSH server into any other."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    runtime_class: str = ""
    allowed_cidrs: tuple[str, ...] = ()
    """Private networks that dev servers may reach; by default the internet and their own gang only."""
    termination_grace: timedelta = timedelta(seconds=20)
    """How long processes in a dev server that ends have for saving their work."""
    workspace_size: str = "100Gi"
    shared_storage_class: str = ""
    """A ReadWriteMany storage class for /workspace; none: scratch."""
    efs_file_system_id: str = ""
    efs_security_group_id: str = ""
    efs_subnet_ids: tuple[str, ...] = ()
    disk_driver: str = ""
    """The CSI driver that attaches disks' volumes; none: the usual one of the cloud."""
    disk_zone_label: str = ""
    """The label by which that driver tells a node's zone."""
    disk_fs_type: str = "ext4"
    """What a new disk is formatted with. One that is formatted stays as it is."""
    stale_after: timedelta = timedelta(seconds=15)
    """Without a sign of life from the API server for this long, no decision is made."""
    node_lost_after: timedelta = timedelta(minutes=5)
    """A dev server on a node that has not answered for this long is lost."""
    unschedulable_after: timedelta = timedelta(minutes=1)
    """A pod that no node takes for this long never will be."""
    image_pull_patience: timedelta = timedelta(minutes=2)
    """How long pulling an image may go on failing."""

    def __post_init__(self) -> None:
        _check_one_of("GPU_DEV_KUBE_ACCESS", self.access, ("auto", "kubeconfig", "in-cluster", "eks"))
        _check_one_of("GPU_DEV_NODE_ADDRESS", self.node_address, ("external", "internal", "hostname"))
        if self.stale_after < _MIN_STALE_AFTER:
            raise ValueError(f"GPU_DEV_STALE_AFTER must be at least {_MIN_STALE_AFTER.total_seconds():g} seconds")
        for name in self.whole_node_resources:
            if not _WHOLE_NODE_RESOURCE.fullmatch(name) or name == self.gpu_resource:
                allowed = "devices like vpc.amazonaws.com/efa, and huge pages like hugepages-2Mi"
                raise ValueError(f"GPU_DEV_WHOLE_NODE_RESOURCES names {name!r}; it may name {allowed}")

    @property
    def watch_timeout(self) -> timedelta:
        """How long one watch lasts before it is resumed. The API server gives a sign of life shortly before the end,
        so this is less than `stale_after`."""
        return min(_LONGEST_WATCH, self.stale_after * 2 / 3)


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Where AWS is asked. Credentials and AWS_ENDPOINT_URL are found as every AWS program finds them."""

    region: str = "us-east-2"


@dataclass(frozen=True, slots=True)
class GcpSettings:
    """How Google Cloud is asked. Credentials are found as every Google Cloud program finds them."""

    project: str = ""
    """None: the credentials' own."""
    region: str = ""
    """Only groups and disks of this region (or of its zones) are ours. None: of all regions."""
    disk_type: str = "pd-balanced"
    """Of disks that are made."""


@dataclass(frozen=True, slots=True)
class AwsLoginSettings:
    """Login with AWS credentials. Without accounts: none."""

    accounts: tuple[str, ...] = ()
    """Whose roles count, by number."""
    roles: tuple[str, ...] = ("SSOCloudDevGpuReservation",)
    """Who holds one of these (a role, or a permission set of AWS's single sign-on) may come in."""
    regions: tuple[str, ...] = ("us-east-2",)
    """For which regions' STS requests may be signed. AWS's other partitions have regions of their own."""
    sts_url: str = ""
    """Another way to STS than its public address (a VPC endpoint). Never from a request."""

    def __post_init__(self) -> None:
        if not all(len(account) == 12 and account.isascii() and account.isdigit() for account in self.accounts):
            raise ValueError("GPU_DEV_AWS_LOGIN_ACCOUNTS must be account numbers of 12 digits")
        if self.accounts and not (all(self.roles) and self.roles and self.regions):
            raise ValueError("GPU_DEV_AWS_LOGIN_ACCOUNTS needs GPU_DEV_AWS_LOGIN_ROLES and GPU_DEV_AWS_LOGIN_REGIONS")
        if self.sts_url and not re.match(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]", self.sts_url):
            raise ValueError("GPU_DEV_AWS_LOGIN_STS_URL must begin with https:// (http:// on this machine only)")
        for region in self.regions:
            try:
                get_sts_endpoint(region)
            except Invalid as error:
                raise ValueError(f"GPU_DEV_AWS_LOGIN_REGIONS: {error}") from error


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Login through an OpenID Connect provider. Without an issuer: none."""

    issuer: str = ""
    """Its address, exactly as its tokens say it."""
    client_id: str = ""
    """Whom its tokens must be for: a public client, allowed to redirect to http://127.0.0.1 on any port."""
    client_secret: str = ""
    """Only where a provider gives one to programs on people's own machines. Every client gets it: it is no secret."""
    scopes: tuple[str, ...] = ("openid", "email", "profile", "offline_access")
    username_claim: str = "email"
    """Becomes the user's name. An email must be a verified one."""
    groups_claim: str = "groups"
    admin_groups: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    """None of these three: everybody the issuer vouches for is a user, and roles are given here. Else who is in none
    of the groups is a user all the same, unless there are user groups: then they are refused."""
    email_domains: tuple[str, ...] = ()
    """Only verified emails of these domains. None: of any."""

    def __post_init__(self) -> None:
        if self.issuer and not self.client_id:
            raise ValueError("GPU_DEV_OIDC_ISSUER needs GPU_DEV_OIDC_CLIENT_ID beside it")
        if self.issuer and not re.match(r"https://[^/@]|http://(localhost|127\.0\.0\.1|\[::1\])(:|/|$)", self.issuer):
            raise ValueError("GPU_DEV_OIDC_ISSUER must be an https address (http on this machine alone)")
        if self.issuer and "openid" not in self.scopes:
            raise ValueError("GPU_DEV_OIDC_SCOPES must have openid among them")


@dataclass(frozen=True, slots=True)
class RequestGuardSettings:
    """Whom the API believes, and how many connections it takes."""

    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-For is believed."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may ask the API in a browser. None: no other than its own."""
    keep_alive: timedelta = timedelta(seconds=75)
    """How long a connection may lie idle between two requests. Longer than what stands before us keeps one (60 seconds,
    as a rule): else it sends a request just when we hang up, and somebody is told 502."""
    max_connections: int = 2000
    """At once, in each process; beyond that the answer is 503."""

    def __post_init__(self) -> None:
        for text in self.trusted_proxies:
            try:
                ip_network(text, strict=False)
            except ValueError as error:
                raise ValueError(f"GPU_DEV_TRUSTED_PROXIES holds {text!r}, which is no address or network") from error


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Telling people outside. Without an address: nobody is told."""

    secret_urls: tuple[str, ...] = field(default=(), repr=False)
    """Apprise's addresses, separated by spaces or lines."""
    urls_file: str = ""
    """A file that holds more of them."""
    on: tuple[str, ...] = ("ready", "warning", "failed", "ended")
    """Of what."""

    def __post_init__(self) -> None:
        for occasion in self.on:
            _check_one_of("GPU_DEV_NOTIFY_ON", occasion, tuple(NotificationKind))


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """ssh through HTTPS. The limits count in each process for itself."""

    url: str = ""
    """Where people reach `gpu-dev-server proxy`, if not at the API's own address: https://HOST[:PORT]."""
    host: str = "127.0.0.1"
    port: int = 7481
    """Where `gpu-dev-server proxy` listens."""
    most_per_user: int = 256
    most: int = 2000
    """Sessions at once."""
    ping_every: timedelta = timedelta(seconds=20)
    """Less than anything on the way waits before it takes a silent connection for dead (often 60 seconds)."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("https://", "http://")):
            raise ValueError("GPU_DEV_PROXY_URL must begin with https:// (or http://)")


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"the environment variable {name} holds {value!r}; it may be {', '.join(allowed)}")
