"""What operators set for the login with AWS, and what client and server agree on."""

import pytest
from botocore.loaders import Loader

from gpudev.domain.access.login import get_sts_endpoint, server_name
from gpudev.domain.errors import Invalid
from gpudev.settings import load_settings

ACCOUNTS = {"GPU_DEV_AWS_LOGIN_ACCOUNTS": "123456789012"}
NAMES = {"GPU_DEV_SERVER_NAMES": "gpu.example.com"}


def test_the_login_is_off_until_accounts_are_named() -> None:
    assert load_settings({}).aws_login.accounts == ()


def test_what_is_set_is_read() -> None:
    settings = load_settings(
        {
            "GPU_DEV_AWS_LOGIN_ACCOUNTS": "123456789012, 210987654321",
            "GPU_DEV_AWS_LOGIN_ROLES": "GpuUsers",
            "GPU_DEV_AWS_LOGIN_REGIONS": "eu-central-1,us-gov-west-1",
            "GPU_DEV_SERVER_NAMES": "GPU.example.com, 10.0.0.7:8443",
        }
    )
    assert settings.aws_login.accounts == ("123456789012", "210987654321")
    assert settings.aws_login.roles == ("GpuUsers",)
    assert settings.server_names == ("gpu.example.com", "10.0.0.7:8443")


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (ACCOUNTS, "GPU_DEV_SERVER_NAMES"),
        (NAMES | {"GPU_DEV_AWS_LOGIN_ACCOUNTS": "12345"}, "ACCOUNTS"),
        (NAMES | {"GPU_DEV_AWS_LOGIN_ACCOUNTS": "*"}, "ACCOUNTS"),
        (NAMES | {"GPU_DEV_AWS_LOGIN_ACCOUNTS": "123456789012,"}, "ACCOUNTS"),
        (NAMES | ACCOUNTS | {"GPU_DEV_AWS_LOGIN_REGIONS": "evil.example/"}, "REGIONS"),
        (NAMES | ACCOUNTS | {"GPU_DEV_AWS_LOGIN_REGIONS": ","}, "REGIONS"),
        (NAMES | ACCOUNTS | {"GPU_DEV_AWS_LOGIN_ROLES": ","}, "ROLES"),
        (NAMES | ACCOUNTS | {"GPU_DEV_AWS_LOGIN_STS_URL": "http://sts.internal/"}, "STS_URL"),
        (NAMES | ACCOUNTS | {"GPU_DEV_AWS_LOGIN_STS_URL": "http://127.0.0.1.evil.example/"}, "STS_URL"),
        (NAMES | ACCOUNTS | {"GPU_DEV_AWS_LOGIN_STS_URL": "file:///etc/passwd"}, "STS_URL"),
    ],
)
def test_a_setting_that_would_let_the_wrong_ones_in_is_refused_by_name(environment: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load_settings(environment)


def test_every_region_aws_has_leads_to_its_own_token_service() -> None:
    tried = 0
    for partition in Loader().load_data("partitions")["partitions"]:
        for region in partition["regions"]:
            if not region.endswith("-global"):
                endpoint = get_sts_endpoint(region)
                assert endpoint.partition == partition["id"]
                assert endpoint.host == f"sts.{region}.{partition['outputs']['dnsSuffix']}"
                tried += 1
    assert tried > 30


@pytest.mark.parametrize(
    "region", ["", "us-east", "us-east-2.evil.example", "us-east-2/", "US-EAST-2", "us-east-2\n", "../x-y-1", "a-b-1"]
)
def test_what_is_no_region_leads_nowhere(region: str) -> None:
    with pytest.raises(Invalid):
        get_sts_endpoint(region)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://gpu.example.com", "gpu.example.com"),
        ("https://gpu.example.com:443/base", "gpu.example.com"),
        ("https://GPU.example.com:8443", "gpu.example.com:8443"),
        ("http://gpu.example.com:443", "gpu.example.com:443"),
        ("http://127.0.0.1:7480", "127.0.0.1:7480"),
        ("http://[::1]:7480", "[::1]:7480"),
    ],
)
def test_a_server_is_called_as_it_is_reached(url: str, name: str) -> None:
    assert server_name(url) == name
