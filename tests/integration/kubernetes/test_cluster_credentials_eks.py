"""An EKS cluster from outside: DescribeCluster on a real HTTP server, and the token that says who we are."""

import asyncio
import base64
import hmac
import sys
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from gpudev.adapters.kubernetes.client.cluster_credentials import EksCluster, choose_credential_source
from gpudev.adapters.kubernetes.client.kubernetes_api import connect_api
from gpudev.domain.errors import Unavailable
from gpudev.settings import KubernetesSettings

pytestmark = pytest.mark.slow
REGION = "us-east-2"
SECRET = "the-secret-that-never-leaves"
ROLE = "arn:aws:iam::123456789012:role/cluster"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an AWS of our own, which the AWS library is sent to."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{address}/moto-api/reset", b"").close()
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield address
    server.stop()


@pytest.fixture
def cluster(aws: str) -> str:
    client = get_session().create_client("eks", region_name=REGION)
    client.create_cluster(name="gpus", roleArn=ROLE, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]})
    client.close()
    return "gpus"


async def test_the_clusters_address_and_authority_come_from_eks(cluster: str) -> None:
    found = await EksCluster(cluster, REGION).get_endpoint()
    assert urlsplit(found.url).scheme == "https"
    assert "eks" in found.url
    client = get_session().create_client("eks", region_name=REGION)
    said = client.describe_cluster(name=cluster)["cluster"]
    client.close()
    kept = await asyncio.to_thread(Path(found.ca_file).read_bytes)
    assert kept == base64.b64decode(said["certificateAuthority"]["data"])


async def test_the_token_is_a_signed_question_who_we_are_for_this_cluster_only(cluster: str) -> None:
    token = await EksCluster(cluster, REGION).create_token()
    prefix, encoded = token.split(".", 1)
    address = urlsplit(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
    query = parse_qs(address.query)
    assert prefix == "k8s-aws-v1"
    assert "=" not in encoded
    assert (address.scheme, address.hostname, address.path) == ("https", f"sts.{REGION}.amazonaws.com", "/")
    assert query["Action"] == ["GetCallerIdentity"]
    assert query["X-Amz-Expires"] == ["60"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert SECRET not in address.query
    assert query["X-Amz-Signature"] == [_signature(address, query["X-Amz-Date"][0], cluster)]
    assert query["X-Amz-Signature"] != [_signature(address, query["X-Amz-Date"][0], "another cluster")]


async def test_credentials_for_an_eks_cluster_are_its_address_and_our_token(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    credentials = choose_credential_source(KubernetesSettings(access="eks", eks_cluster_name=cluster))
    access = await credentials.get_credentials()
    assert access.configuration.host.startswith("https://")
    assert (access.authorization or "").startswith("Bearer k8s-aws-v1.")
    assert await credentials.get_credentials() is access  # good for minutes
    credentials._read_at -= 2
    renewed = await credentials.get_credentials(rejected=access)
    assert renewed is not access
    assert renewed.connection_settings == access.connection_settings  # connections stay


async def test_a_cluster_that_eks_does_not_know_is_unavailable(aws: str) -> None:
    settings = KubernetesSettings(access="eks", eks_cluster_name="nobody")
    api = connect_api(settings)
    with pytest.raises(Unavailable, match="nobody"):
        await api.get_server_version()
    await api.close()


async def test_without_a_region_or_credentials_the_reason_is_said(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="region"):
        await EksCluster(cluster, "").get_endpoint()
    with pytest.raises(Unavailable, match="AWS_REGION"):
        await EksCluster(cluster, "").create_token()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(Unavailable, match="no AWS credentials"):
        await EksCluster(cluster, REGION).create_token()


async def test_without_the_aws_library_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(Unavailable, match=r"gpu-dev\[server,aws\]"):
        await EksCluster("gpus", REGION).get_endpoint()


def _signature(address: SplitResult, date: str, cluster: str) -> str:
    """As STS computes it from the request it gets and the secret it knows."""
    signed = "&".join(sorted(part for part in address.query.split("&") if not part.startswith("X-Amz-Signature=")))
    headers = f"host:{address.hostname}\nx-k8s-aws-id:{cluster}\n"
    request = "\n".join(("GET", "/", signed, headers, "host;x-k8s-aws-id", sha256(b"").hexdigest()))
    scope = f"{date[:8]}/{REGION}/sts/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", date, scope, sha256(request.encode()).hexdigest()))
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()
