"""All settings: names, defaults, meanings. Read from the environment; docs/operations lists them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from gpudev.domain.addresses import parse_bind_address, parse_listen_address
from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.errors import Invalid
from gpudev.paths import state_dir
from gpudev.settings.env_parsing import (
    parse_days,
    parse_names,
    parse_positive,
    parse_switch,
    read_section,
    read_variable,
)
from gpudev.settings.sections import (
    API_ROLE,
    MIGRATOR_ROLE,
    PROCESSOR_ROLE,
    RECONCILER_ROLE,
    AwsLoginSettings,
    AwsSettings,
    DatabaseSettings,
    FairShareSettings,
    GcpSettings,
    KubernetesSettings,
    LimitSettings,
    NotifySettings,
    OidcSettings,
    ProxySettings,
    ReconcileSettings,
    RequestGuardSettings,
    TimingSettings,
)

__all__ = [
    "API_ROLE",
    "LOCAL_ZONE",
    "MIGRATOR_ROLE",
    "PROCESSOR_ROLE",
    "RECONCILER_ROLE",
    "AwsLoginSettings",
    "AwsSettings",
    "DatabaseSettings",
    "DiskSettings",
    "FairShareSettings",
    "GcpSettings",
    "KubernetesSettings",
    "LimitSettings",
    "NotifySettings",
    "OidcSettings",
    "ProxySettings",
    "ReconcileSettings",
    "RequestGuardSettings",
    "Settings",
    "TimingSettings",
    "given_variables",
    "load_settings",
    "on_this_machine",
]


@dataclass(frozen=True, slots=True)
class Settings:
    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    timing: TimingSettings = field(default_factory=TimingSettings)
    fair_share: FairShareSettings = field(default_factory=FairShareSettings)
    cluster: str = "local"
    """Where dev servers run: local (this machine) or kubernetes."""
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    cloud: str = "none"
    """Where node groups, volumes and snapshots are: none, aws, gcp, or local (folders of this machine)."""
    disks: DiskSettings = field(default_factory=DiskSettings)
    aws: AwsSettings = field(default_factory=AwsSettings)
    gcp: GcpSettings = field(default_factory=GcpSettings)
    reconciling: ReconcileSettings = field(default_factory=ReconcileSettings)
    aws_login: AwsLoginSettings = field(default_factory=AwsLoginSettings)
    server_names: tuple[str, ...] = ()
    """The API's public names: HOST, or HOST:PORT if the port is not the default."""
    oidc: OidcSettings = field(default_factory=OidcSettings)
    guarding: RequestGuardSettings = field(default_factory=RequestGuardSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    state_dir: Path = Path("~/.local/share/gpu-dev")
    """Embedded and local mode: database, disks, dev servers' folders, logs."""
    nodes_file: Path | None = None
    """Local mode: the file that describes this machine's nodes. None: detect them."""
    api_host: str = "127.0.0.1"
    api_port: int = 7480
    ssh_host: str = "127.0.0.1"
    """Local mode: the address of the dev servers' SSH servers."""
    user_namespaces: bool = False
    """Local mode: whether processes in dev servers may create user namespaces."""
    network: str = "auto"
    """Local mode: own (each dev server has its own network), shared (all use the machine's), or auto (own where that
    works)."""
    network_range: str = ""
    """Local mode: the range of addresses for own networks, like 10.77.0.0/16. Empty: a private range that is free."""
    listen: str = ""
    """ADDRESS:PORT of the API's TLS listener for other machines. Empty: no listener."""
    tls_cert: Path | None = None
    """Its certificate with the chain (PEM). None: a self-signed one."""
    tls_key: Path | None = None
    invited_key_ttl: timedelta | None = timedelta(days=30)
    """Lifetime of a key from an invitation. None: no expiry."""
    api_key_ttl: timedelta | None = timedelta(hours=2)
    github_url: str = "https://github.com"
    metrics_address: str = ""
    """ADDRESS:PORT where each service serves metrics and health. Empty: not served."""
    otlp_url: str = ""
    """URL of an OpenTelemetry collector (OTLP over HTTP). Empty: no traces."""
    dcgm_url: str = ""
    """URL of the DCGM exporters' metrics, for GPU usage. All addresses of the host name are queried."""
    log_format: str = "json"
    """json, or console for terminals."""

    def __post_init__(self) -> None:
        if self.aws_login.accounts and not self.server_names:
            raise ValueError(
                "GPU_DEV_AWS_LOGIN_ACCOUNTS requires GPU_DEV_SERVER_NAMES: signed login requests name the server"
            )

    @property
    def has_remote_cloud(self) -> bool:
        """Whether the cloud has node groups, and volumes that may change outside gpu-dev."""
        return self.cloud in _DISK_DRIVERS

    @property
    def manages_volumes(self) -> bool:
        """Whether dev servers can use the cloud's volumes: folders on one machine, real volumes on Kubernetes."""
        return self.cloud != "none" and (self.cloud == "local") == (self.cluster == "local")

    @property
    def own_addresses(self) -> frozenset[tuple[str, int]]:
        """Addresses of the control plane itself. The proxy never connects to these."""
        own = {(self.api_host, self.api_port), (self.proxy.host, self.proxy.port)}
        if not self.database.host.startswith("/"):  # a unix socket
            own.add((self.database.host, self.database.port))
        if self.listen:
            address = parse_listen_address(self.listen)
            own.add((address.host, address.port))
        if self.metrics_address:  # on one machine API, processor and proxy use neighbouring ports
            metrics = parse_bind_address(self.metrics_address)
            own.update(
                (metrics.host, metrics.port + offset) for offset in (range(-2, 3) if self.cluster == "local" else (0,))
            )
        return frozenset(own)

    @property
    def has_disks(self) -> bool:
        """Whether there is any storage for named disks."""
        return self.cluster == "local" or self.cloud in _DISK_DRIVERS


CLUSTER = "GPU_DEV_CLUSTER"
_EKS_CLUSTER_NAME = "EKS_CLUSTER_NAME"
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
LOCAL_ZONE = "this-machine"
_DISK_DRIVERS = {
    "aws": ("ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"),
    "gcp": ("pd.csi.storage.gke.io", "topology.gke.io/zone"),
}
"""By cloud: the CSI driver of its volumes, and the driver's node label with the zone."""


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Raises ValueError for an invalid value, with the variable's name."""
    env = os.environ if environ is None else environ
    return Settings(
        database=DatabaseSettings(
            host=env.get("POSTGRES_HOST", "localhost"),
            port=read_variable(env, "POSTGRES_PORT", int, 5432),
            user=env.get("POSTGRES_USER", "gpudev"),
            password=env.get("POSTGRES_PASSWORD"),
            database=env.get("POSTGRES_DB", "gpudev"),
        ),
        limits=read_section(env, LimitSettings(), "GPU_DEV_"),
        timing=_timing(env),
        fair_share=FairShareSettings(
            on=read_variable(env, "GPU_DEV_FAIR_SHARE", parse_switch, False),
            half_life_hours=read_variable(env, "GPU_DEV_FAIR_SHARE_HALF_LIFE_HOURS", parse_positive, 168.0),
            patience_hours=read_variable(env, "GPU_DEV_FAIR_SHARE_PATIENCE_HOURS", parse_positive, 24.0),
        ),
        cluster=_chosen_cluster(env),
        kubernetes=_kubernetes(env),
        cloud=_chosen_cloud(env),
        disks=_disks(env),
        aws=read_section(env, AwsSettings(), "GPU_DEV_AWS_", {"region": "AWS_REGION"}),
        gcp=read_section(env, GcpSettings(), "GPU_DEV_GCP_"),
        reconciling=read_section(env, ReconcileSettings(), "GPU_DEV_"),
        aws_login=read_section(env, AwsLoginSettings(), "GPU_DEV_AWS_LOGIN_"),
        server_names=read_variable(env, "GPU_DEV_SERVER_NAMES", parse_names, ()),
        oidc=read_section(env, OidcSettings(), "GPU_DEV_OIDC_"),
        guarding=read_section(env, RequestGuardSettings(), "GPU_DEV_"),
        proxy=read_section(env, ProxySettings(), "GPU_DEV_PROXY_"),
        notify=_notify(env),
        state_dir=state_dir(env),
        nodes_file=read_variable(env, "GPU_DEV_NODES_FILE", Path, None),
        api_host=env.get("GPU_DEV_API_HOST", "127.0.0.1"),
        api_port=read_variable(env, "GPU_DEV_API_PORT", int, 7480),
        ssh_host=env.get("GPU_DEV_SSH_HOST", "127.0.0.1"),
        user_namespaces=read_variable(env, "GPU_DEV_USER_NAMESPACES", parse_switch, False),
        network=read_variable(env, "GPU_DEV_NETWORK", _check_network, "auto"),
        network_range=read_variable(env, "GPU_DEV_NETWORK_RANGE", _check_network_range, ""),
        listen=env.get("GPU_DEV_LISTEN", ""),
        tls_cert=read_variable(env, "GPU_DEV_TLS_CERT", Path, None),
        tls_key=read_variable(env, "GPU_DEV_TLS_KEY", Path, None),
        invited_key_ttl=read_variable(env, "GPU_DEV_INVITED_KEY_DAYS", parse_days, timedelta(days=30)),
        api_key_ttl=_api_key_ttl(env),
        github_url=env.get("GPU_DEV_GITHUB_URL", "https://github.com").rstrip("/"),
        metrics_address=read_variable(env, "GPU_DEV_METRICS_ADDRESS", _check_bind_address, ""),
        otlp_url=read_variable(env, "GPU_DEV_OTLP_URL", _check_collector_url, ""),
        dcgm_url=read_variable(env, "GPU_DEV_DCGM_URL", _check_http_url, ""),
        log_format=env.get("GPU_DEV_LOG_FORMAT", "json"),
    )


def _timing(env: Mapping[str, str]) -> TimingSettings:
    timing = read_section(env, TimingSettings(), "GPU_DEV_")
    if _chosen_cluster(env) == "kubernetes" and not env.get("GPU_DEV_PREPARING_MARGIN"):
        # Pulling a large image may take minutes. With the deadline as margin, no guaranteed start is missed.
        timing = replace(timing, preparing_margin=timing.preparing_deadline)
    if _chosen_cloud(env) in _DISK_DRIVERS and not env.get("GPU_DEV_TEARDOWN_MARGIN"):
        # A snapshot begins only after the node has detached the volume.
        timing = replace(timing, teardown_margin=timedelta(minutes=2))
    return timing


def _chosen_cluster(env: Mapping[str, str]) -> str:
    """An EKS cluster's name, or the variables of every pod, mean Kubernetes: whoever has them and forgot the setting
    must not have this machine's nodes recorded as the cluster's."""
    is_on_kubernetes = env.get(_EKS_CLUSTER_NAME) or env.get(_IN_CLUSTER)
    return str(read_variable(env, CLUSTER, _check_cluster, "kubernetes" if is_on_kubernetes else "local"))


def _chosen_cloud(env: Mapping[str, str]) -> str:
    """On one machine disks are folders by default; beside an EKS cluster they are in AWS."""
    default = "local" if _chosen_cluster(env) == "local" else "aws" if env.get(_EKS_CLUSTER_NAME) else "none"
    return str(read_variable(env, "GPU_DEV_CLOUD", _check_cloud, default))


def on_this_machine(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the embedded system, whose cluster is this machine even inside a pod."""
    return {CLUSTER: "local", **{name: value for name, value in environ.items() if name != CLUSTER or value}}


def _disks(env: Mapping[str, str]) -> DiskSettings:
    default = DiskSettings()
    if _chosen_cloud(env) == "local":
        # There is only one zone, and polling it costs nothing.
        default = replace(default, zone=LOCAL_ZONE, poll_every=timedelta(milliseconds=200))
    return read_section(env, default, "GPU_DEV_DISK_")


def given_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that are settings, to start the same server later: without those of the database, and
    only those that `load_settings` reads."""
    recording = _RecordingEnvironment(environ)
    load_settings(recording)
    names = recording.read_names & environ.keys() - {_NOTIFY_URLS}
    return {name: environ[name] for name in sorted(names) if name.startswith(_CARRIED_PREFIXES)}


_CARRIED_PREFIXES = ("GPU_DEV_", "API_KEY_")
_NOTIFY_URLS = "GPU_DEV_NOTIFY_URLS"
"""Secrets, never written to a file that others may read; use GPU_DEV_NOTIFY_URLS_FILE instead."""


class _RecordingEnvironment(dict[str, str]):
    """An environment that records which variables were read."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self.read_names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read_names.add(name)
        return super().get(name, default)


def _api_key_ttl(env: Mapping[str, str]) -> timedelta | None:
    hours = read_variable(env, "API_KEY_TTL_HOURS", float, 2.0)
    return None if hours == 0 else timedelta(hours=hours)


_KUBERNETES_NAMES = {
    "access": "GPU_DEV_KUBE_ACCESS",
    "kubeconfig": "KUBECONFIG",
    "context": "GPU_DEV_KUBE_CONTEXT",
    "eks_cluster_name": _EKS_CLUSTER_NAME,
    "efs_file_system_id": "EFS_FILE_SYSTEM_ID",
    "efs_security_group_id": "EFS_SECURITY_GROUP_ID",
    "efs_subnet_ids": "EFS_SUBNET_IDS",
}
"""Variables that are not named GPU_DEV_FIELD."""


def _kubernetes(env: Mapping[str, str]) -> KubernetesSettings:
    settings = read_section(env, KubernetesSettings(), "GPU_DEV_", _KUBERNETES_NAMES)
    driver, label = _DISK_DRIVERS.get(_chosen_cloud(env), ("", ""))
    return replace(
        settings,
        disk_driver=settings.disk_driver or driver,
        disk_zone_label=settings.disk_zone_label or label,
    )


def _check_collector_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/@\s]+/\S*", text):
        raise ValueError("expected http://HOST:4318/v1/traces")
    return text


def _check_http_url(text: str) -> str:
    if not re.fullmatch(r"http://[^/@\s]+/\S*", text):
        raise ValueError("expected http://HOST:9400/metrics")
    return text


def _check_bind_address(text: str) -> str:
    try:
        return str(parse_bind_address(text))
    except Invalid as error:
        raise ValueError(str(error)) from error


def _notify(env: Mapping[str, str]) -> NotifySettings:
    """Not read as a section: a URL may contain a comma, and no error may quote it."""
    return NotifySettings(
        secret_urls=tuple(env.get(_NOTIFY_URLS, "").split()),
        urls_file=env.get("GPU_DEV_NOTIFY_URLS_FILE", ""),
        on=read_variable(env, "GPU_DEV_NOTIFY_ON", parse_names, NotifySettings().on),
    )


def _check_network(text: str) -> str:
    if text not in ("auto", "own", "shared"):
        raise ValueError("expected auto, own or shared")
    return text


def _check_network_range(text: str) -> str:
    if text and not 8 <= IPv4Network(text).prefixlen <= 26:
        raise ValueError("expected a range of at least 64 IPv4 addresses, like 10.77.0.0/16")
    return text


def _check_cluster(text: str) -> str:
    if text not in ("local", "kubernetes"):
        raise ValueError("expected local or kubernetes")
    return text


def _check_cloud(text: str) -> str:
    if text not in ("none", "local", "aws", "gcp"):
        raise ValueError("expected none, local, aws or gcp")
    return text
