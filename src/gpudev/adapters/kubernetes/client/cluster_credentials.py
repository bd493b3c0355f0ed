"""Address and credentials of the API server: from a kubeconfig, a service account or EKS.

Credentials are read again before they expire (files rotate; plugins and EKS issue short-lived tokens) and whenever the
API server rejects them. Nothing here calls the API server.
"""

import asyncio
import atexit
import base64
import contextlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME, SERVICE_TOKEN_FILENAME

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


def _to_credentials(configuration: Configuration) -> ApiCredentials:
    # A cluster's own certificate authority often lacks extensions that strict X.509 verification requires. Signature,
    # validity and host name are still verified.
    configuration.disable_strict_ssl_verification = True
    token = configuration.api_key.get(_BEARER_TOKEN)
    return ApiCredentials(configuration, token.strip() if token else None)


# EKS, from outside of the cluster. DescribeCluster returns the endpoint. The token is a presigned URL: a
# GetCallerIdentity request to STS, signed with our AWS credentials, which EKS calls to learn who we are. No secret
# leaves this machine. EKS accepts a token for fifteen minutes.


_TOKEN_PREFIX = "k8s-aws-v1."
_CLUSTER_NAME_HEADER = "x-k8s-aws-id"
_SIGNATURE_LIFETIME_S = 60


@dataclass(frozen=True, slots=True)
class EksEndpoint:
    url: str
    ca_file: str


class EksCluster:
    token_lifetime_s = 600.0

    def __init__(self, name: str, region: str) -> None:
        self.name = name
        self._region = region
        self._session: Any = None
        self._endpoint: EksEndpoint | None = None

    async def get_endpoint(self) -> EksEndpoint:
        """Fetched once, because it never changes while the cluster exists. Raises Unavailable."""
        if self._endpoint is None:
            self._endpoint = await asyncio.to_thread(self._describe_cluster)
        return self._endpoint

    async def create_token(self) -> str:
        return await asyncio.to_thread(self._sign_token)

    def _describe_cluster(self) -> EksEndpoint:
        with self._aws_session() as session:
            client = session.create_client("eks", region_name=self._region or None)
            with contextlib.closing(client):
                found = client.describe_cluster(name=self.name)["cluster"]
        if "endpoint" not in found:
            raise Unavailable(f"the EKS cluster {self.name} has no endpoint yet (status {found.get('status')})")
        return EksEndpoint(
            found["endpoint"], _write_certificate_file(base64.b64decode(found["certificateAuthority"]["data"]))
        )

    def _sign_token(self) -> str:
        with self._aws_session() as session:
            from botocore.model import ServiceId
            from botocore.signers import RequestSigner

            region = self._region or session.get_config_variable("region")
            if not region:
                raise Unavailable("AWS_REGION is not set: EKS tokens are signed for a region")
            credentials = session.get_credentials()
            if credentials is None:
                raise Unavailable(f"no AWS credentials found for the EKS cluster {self.name}")
            events = session.get_component("event_emitter")
            signer = RequestSigner(ServiceId("STS"), region, "sts", "v4", credentials, events)
            url = signer.generate_presigned_url(
                {
                    "method": "GET",
                    "url": f"https://sts.{region}.{_domain_suffix(region)}/?Action=GetCallerIdentity&Version=2011-06-15",
                    "body": {},
                    "headers": {_CLUSTER_NAME_HEADER: self.name},
                    "context": {},
                },
                region_name=region,
                expires_in=_SIGNATURE_LIFETIME_S,
                operation_name="",
            )
        return _TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    @contextlib.contextmanager
    def _aws_session(self) -> Iterator[Any]:
        """The AWS library's session, with its errors mapped to Unavailable."""
        try:
            from botocore.exceptions import BotoCoreError, ClientError
            from botocore.session import get_session
        except ImportError as error:
            raise Unavailable('EKS needs the AWS library: pip install "gpu-dev[server,aws]"') from error
        if self._session is None:
            self._session = get_session()
        try:
            yield self._session
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"the EKS cluster {self.name} cannot be reached: {error}") from error


async def _read_eks(cluster: EksCluster) -> ApiCredentials:
    endpoint = await cluster.get_endpoint()
    configuration = Configuration(host=endpoint.url, ssl_ca_cert=endpoint.ca_file)
    configuration.api_key[_BEARER_TOKEN] = f"Bearer {await cluster.create_token()}"
    return _to_credentials(configuration)


def _domain_suffix(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _write_certificate_file(certificate: bytes) -> str:
    """The TLS library needs a file. It contains no secret."""
    handle, name = tempfile.mkstemp(prefix="gpu-dev-eks-", suffix=".pem")
    os.close(handle)
    Path(name).write_bytes(certificate)
    atexit.register(Path(name).unlink, missing_ok=True)
    return name
