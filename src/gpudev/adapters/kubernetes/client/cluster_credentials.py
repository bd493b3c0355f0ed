"""Address and credentials of the API server: from a kubeconfig, a service account or EKS.

Credentials are read again before they expire (files rotate; plugins and EKS issue short-lived tokens) and whenever the
API server rejects them. Nothing here calls the API server.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME, SERVICE_TOKEN_FILENAME

from gpudev.adapters.kubernetes.client.eks_token import EksCluster
from gpudev.domain.errors import Unavailable
from gpudev.settings import KubernetesSettings

_BEARER_TOKEN = "BearerToken"
_FILE_LIFETIME_S = 60.0
_PLUGIN_TOKEN_LIFETIME_S = 300.0
"""EKS tokens are valid for fifteen minutes. A plugin with shorter-lived tokens runs again when one is rejected."""
_MIN_RENEWAL_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ApiCredentials:
    """Credentials as read once."""

    configuration: Configuration
    authorization: str | None

    @property
    def connection_settings(self) -> tuple[object, ...]:
        """What connections depend on. When it changes, they must be opened again."""
        current = self.configuration
        return (
            current.host,
            current.ssl_ca_cert,
            current.cert_file,
            current.key_file,
            current.verify_ssl,
            current.proxy,
        )


class CredentialSource:
    """Caches credentials while they are valid."""

    def __init__(self, read: Callable[[], Awaitable[ApiCredentials]], lifetime_s: float, source: str) -> None:
        self.description = source
        """For people: where the credentials come from."""
        self._read = read
        self._lifetime_s = lifetime_s
        self._current: ApiCredentials | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def get_credentials(self, *, rejected: ApiCredentials | None = None) -> ApiCredentials:
        """`rejected`: credentials that the API server rejected; newer ones are returned where there are any. Raises
        Unavailable when there are no credentials."""
        async with self._lock:
            age = time.monotonic() - self._read_at
            is_valid = age < self._lifetime_s and (rejected is not self._current or age < _MIN_RENEWAL_INTERVAL_S)
            if self._current is not None and is_valid:
                return self._current
            return await self._renew(rejected)

    async def _renew(self, rejected: ApiCredentials | None) -> ApiCredentials:
        try:
            access = await self._read()
        except (config.ConfigException, aiohttp.ClientError, OSError, ValueError, yaml.YAMLError) as error:
            if self._current is not None and rejected is None:
                return self._current  # the file is being rotated or the plugin hangs: the old ones may still be valid
            raise Unavailable(f"no credentials for the cluster ({self.description}): {error}") from error
        self._current, self._read_at = access, time.monotonic()
        return access


def choose_credential_source(settings: KubernetesSettings) -> CredentialSource:
    match _choose_access(settings):
        case "in-cluster":
            return CredentialSource(_read_service_account, _FILE_LIFETIME_S, "the pod's service account")
        case "eks":
            cluster = EksCluster(settings.eks_cluster_name, os.environ.get("AWS_REGION", ""))
            return CredentialSource(lambda: _read_eks(cluster), cluster.token_lifetime_s, f"EKS cluster {cluster.name}")
        case _:
            path = settings.kubeconfig or "~/.kube/config"
            read = _kubeconfig_reader(str(path), settings.context or None)
            return CredentialSource(read, _PLUGIN_TOKEN_LIFETIME_S, f"kubeconfig {path}")


def _choose_access(settings: KubernetesSettings) -> str:
    if settings.access != "auto":
        return settings.access
    if settings.kubeconfig:
        return "kubeconfig"
    if os.environ.get(SERVICE_HOST_ENV_NAME) and Path(SERVICE_TOKEN_FILENAME).exists():
        return "in-cluster"
    return "eks" if settings.eks_cluster_name else "kubeconfig"


async def _read_service_account() -> ApiCredentials:
    configuration = Configuration()
    config.load_incluster_config(configuration, try_refresh_token=False)
    return _to_credentials(configuration)


def _kubeconfig_reader(path: str, context: str | None) -> Callable[[], Awaitable[ApiCredentials]]:
    files = [Path(part).expanduser() for part in path.split(os.pathsep) if part]

    async def read() -> ApiCredentials:
        if not await asyncio.to_thread(lambda: any(file.exists() for file in files)):
            raise FileNotFoundError(f"file {path} not found")
        configuration = Configuration()
        try:
            await config.load_kube_config(path, context, configuration, persist_config=False)
        except (TypeError, KeyError, AttributeError, AssertionError) as error:  # the library does not validate the file
            raise ValueError("invalid kubeconfig") from error
        return _to_credentials(configuration)

    return read


async def _read_eks(cluster: EksCluster) -> ApiCredentials:
    endpoint = await cluster.get_endpoint()
    configuration = Configuration(host=endpoint.url, ssl_ca_cert=endpoint.ca_file)
    configuration.api_key[_BEARER_TOKEN] = f"Bearer {await cluster.create_token()}"
    return _to_credentials(configuration)


def _to_credentials(configuration: Configuration) -> ApiCredentials:
    # A cluster's own certificate authority often lacks extensions that strict X.509 verification requires. Signature,
    # validity and host name are still verified.
    configuration.disable_strict_ssl_verification = True
    token = configuration.api_key.get(_BEARER_TOKEN)
    return ApiCredentials(configuration, token.strip() if token else None)
