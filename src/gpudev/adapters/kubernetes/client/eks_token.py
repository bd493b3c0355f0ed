"""Endpoint and token of an EKS cluster, for access from outside of it.

DescribeCluster returns the endpoint. The token is a presigned URL: a GetCallerIdentity request to STS, signed with our
AWS credentials, which EKS calls to learn who we are. No secret leaves this machine. EKS accepts a token for fifteen
minutes.
"""

import asyncio
import atexit
import base64
import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudev.domain.errors import Unavailable

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


def _domain_suffix(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _write_certificate_file(certificate: bytes) -> str:
    """The TLS library needs a file. It contains no secret."""
    handle, name = tempfile.mkstemp(prefix="gpu-dev-eks-", suffix=".pem")
    os.close(handle)
    Path(name).write_bytes(certificate)
    atexit.register(Path(name).unlink, missing_ok=True)
    return name
