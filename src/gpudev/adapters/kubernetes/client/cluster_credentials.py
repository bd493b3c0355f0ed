"""Who we are to the API server, and where it is: a kubeconfig, the pod's service account, or an EKS cluster.

Credentials are read again before they end (the files rotate, plugins and EKS hand out short-lived tokens) and whenever
the API server no longer takes them. Nothing here speaks to the API server.
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
"""EKS's tokens live for fifteen minutes; a plugin whose tokens end sooner is run again when one is refused."""
_MIN_RENEWAL_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ApiCredentials:
    """One reading of the credentials."""

    configuration: Configuration
    authorization: str | None

    @property
    def connection_settings(self) -> tuple[object, ...]:
        """What connections were made with: when this changes, they must be made anew."""
        known = self.configuration
        return (known.host, known.ssl_ca_cert, known.cert_file, known.key_file, known.verify_ssl, known.proxy)


class CredentialSource:
    """`get` answers at once while what it has is good. Raises Unavailable when there are none to be had."""

    def __init__(self, read: Callable[[], Awaitable[ApiCredentials]], lifetime_s: float, source: str) -> None:
        self.description = source
        """In words."""
        self._read = read
        self._lifetime_s = lifetime_s
        self._current: ApiCredentials | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def get_credentials(self, *, rejected: ApiCredentials | None = None) -> ApiCredentials:
        """`refused`: what the API server did not take; the answer is newer where there is newer."""
        async with self._lock:
            age = time.monotonic() - self._read_at
            is_good = age < self._lifetime_s and (rejected is not self._current or age < _MIN_RENEWAL_INTERVAL_S)
            if self._current is not None and is_good:
                return self._current
            return await self._renew(rejected)

    async def _renew(self, rejected: ApiCredentials | None) -> ApiCredentials:
        try:
            access = await self._read()
        except (config.ConfigException, aiohttp.ClientError, OSError, ValueError, yaml.YAMLError) as error:
            if self._current is not None and rejected is None:
                return self._current  # the file is being rotated or the plugin hangs: the old may still do
            raise Unavailable(f"no credentials for the cluster ({self.description}): {error}") from error
        self._current, self._read_at = access, time.monotonic()
        return access


def choose_credential_source(settings: KubernetesSettings) -> CredentialSource:
    match _choose_access(settings):
        case "in-cluster":
            return CredentialSource(_read_service_account, _FILE_LIFETIME_S, "the pod's service account")
        case "eks":
            cluster = EksCluster(settings.eks_cluster_name, settings.aws_region)
            return CredentialSource(lambda: _read_eks(cluster), cluster.token_lifetime_s, f"EKS cluster {cluster.name}")
        case _:
            where = settings.kubeconfig or "~/.kube/config"
            read = _kubeconfig_reader(str(where), settings.context or None)
            return CredentialSource(read, _PLUGIN_TOKEN_LIFETIME_S, f"kubeconfig {where}")


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


def _kubeconfig_reader(where: str, context: str | None) -> Callable[[], Awaitable[ApiCredentials]]:
    files = [Path(part).expanduser() for part in where.split(os.pathsep) if part]

    async def read() -> ApiCredentials:
        if not await asyncio.to_thread(lambda: any(file.exists() for file in files)):
            raise FileNotFoundError(f"there is no file {where}")
        configuration = Configuration()
        try:
            await config.load_kube_config(where, context, configuration, persist_config=False)
        except (TypeError, KeyError, AttributeError, AssertionError) as error:  # what the library trips over
            raise ValueError("it is not a kubeconfig") from error
        return _to_credentials(configuration)

    return read


async def _read_eks(cluster: EksCluster) -> ApiCredentials:
    known = await cluster.get_endpoint()
    configuration = Configuration(host=known.url, ssl_ca_cert=known.ca_file)
    configuration.api_key[_BEARER_TOKEN] = f"Bearer {await cluster.create_token()}"
    return _to_credentials(configuration)


def _to_credentials(configuration: Configuration) -> ApiCredentials:
    # Clusters' own certificate authorities often lack extensions that a strict reading of X.509 asks for. Signature,
    # validity and host name are verified all the same.
    configuration.disable_strict_ssl_verification = True
    token = configuration.api_key.get(_BEARER_TOKEN)
    return ApiCredentials(configuration, token.strip() if token else None)
