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

_TOKEN = "BearerToken"
_FILES_ARE_GOOD_FOR_S = 60.0
_PLUGINS_ARE_GOOD_FOR_S = 300.0
"""EKS's tokens live for fifteen minutes; a plugin whose tokens end sooner is run again when one is refused."""
_NOT_TWICE_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Access:
    """One reading of the credentials."""

    configuration: Configuration
    authorization: str | None

    @property
    def transport(self) -> tuple[object, ...]:
        """What connections were made with: when this changes, they must be made anew."""
        known = self.configuration
        return (known.host, known.ssl_ca_cert, known.cert_file, known.key_file, known.verify_ssl, known.proxy)


class Credentials:
    """`get` answers at once while what it has is good. Raises Unavailable when there are none to be had."""

    def __init__(self, read: Callable[[], Awaitable[Access]], good_for_s: float, source: str) -> None:
        self.source = source
        """In words."""
        self._read = read
        self._good_for = good_for_s
        self._access: Access | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    async def get(self, *, refused: Access | None = None) -> Access:
        """`refused`: what the API server did not take; the answer is newer where there is newer."""
        async with self._reading:
            age = time.monotonic() - self._read_at
            is_good = age < self._good_for and (refused is not self._access or age < _NOT_TWICE_WITHIN_S)
            if self._access is not None and is_good:
                return self._access
            return await self._renew(refused)

    async def _renew(self, refused: Access | None) -> Access:
        try:
            access = await self._read()
        except (config.ConfigException, aiohttp.ClientError, OSError, ValueError, yaml.YAMLError) as error:
            if self._access is not None and refused is None:
                return self._access  # the file is being rotated or the plugin hangs: the old may still do
            raise Unavailable(f"no credentials for the cluster ({self.source}): {error}") from error
        self._access, self._read_at = access, time.monotonic()
        return access


def find_credentials(settings: KubernetesSettings) -> Credentials:
    match _choose(settings):
        case "in-cluster":
            return Credentials(_in_cluster, _FILES_ARE_GOOD_FOR_S, "the pod's service account")
        case "eks":
            cluster = EksCluster(settings.eks_cluster_name, settings.aws_region)
            return Credentials(lambda: _eks(cluster), cluster.token_is_good_for_s, f"EKS cluster {cluster.name}")
        case _:
            where = settings.kubeconfig or "~/.kube/config"
            read = _kubeconfig_reader(str(where), settings.context or None)
            return Credentials(read, _PLUGINS_ARE_GOOD_FOR_S, f"kubeconfig {where}")


def _choose(settings: KubernetesSettings) -> str:
    if settings.access != "auto":
        return settings.access
    if settings.kubeconfig:
        return "kubeconfig"
    if os.environ.get(SERVICE_HOST_ENV_NAME) and Path(SERVICE_TOKEN_FILENAME).exists():
        return "in-cluster"
    return "eks" if settings.eks_cluster_name else "kubeconfig"


async def _in_cluster() -> Access:
    configuration = Configuration()
    config.load_incluster_config(configuration, try_refresh_token=False)
    return _access(configuration)


def _kubeconfig_reader(where: str, context: str | None) -> Callable[[], Awaitable[Access]]:
    files = [Path(part).expanduser() for part in where.split(os.pathsep) if part]

    async def read() -> Access:
        if not await asyncio.to_thread(lambda: any(file.exists() for file in files)):
            raise FileNotFoundError(f"there is no file {where}")
        configuration = Configuration()
        try:
            await config.load_kube_config(where, context, configuration, persist_config=False)
        except (TypeError, KeyError, AttributeError, AssertionError) as error:  # what the library trips over
            raise ValueError("it is not a kubeconfig") from error
        return _access(configuration)

    return read


async def _eks(cluster: EksCluster) -> Access:
    known = await cluster.describe()
    configuration = Configuration(host=known.endpoint, ssl_ca_cert=known.ca_file)
    configuration.api_key[_TOKEN] = f"Bearer {await cluster.new_token()}"
    return _access(configuration)


def _access(configuration: Configuration) -> Access:
    # Clusters' own certificate authorities often lack extensions that a strict reading of X.509 asks for. Signature,
    # validity and host name are verified all the same.
    configuration.disable_strict_ssl_verification = True
    token = configuration.api_key.get(_TOKEN)
    return Access(configuration, token.strip() if token else None)
