"""Where a request really comes from, how often it may come, and what browsers are told."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpudev.http_edge.client_ip import ClientIpResolver
from gpudev.http_edge.rate_limits import Rate, RequestLimits, TokenBuckets, rate_limit_key
from gpudev.settings import RequestGuardSettings, load_settings
from support.api.harness import Api, refused

PROXIES = ["10.0.0.0/8", "2001:db8:1::/48", "192.0.2.7"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("198.51.100.1", [], "198.51.100.1"),
        ("198.51.100.1", ["203.0.113.9"], "198.51.100.1"),  # nobody we trust says so
        ("10.0.0.5", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["1.2.3.4, 203.0.113.9"], "203.0.113.9"),  # what stands before it, the client may have written
        ("10.0.0.5", ["1.2.3.4", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["203.0.113.9, 10.1.1.1, 192.0.2.7"], "203.0.113.9"),
        ("10.0.0.5", ["10.1.1.1"], "10.1.1.1"),  # all of them ours
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["203.0.113.9, nonsense"], "10.0.0.5"),
        ("10.0.0.5", ["203.0.113.9\\n, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.5", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.5", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.5", ["2001:db8::1"], "2001:db8::1"),
        ("2001:db8:1::5", ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.5", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", [", ".join(["203.0.113.9"] + ["10.1.1.1"] * 50)], "10.1.1.1"),
        (None, ["203.0.113.9"], None),
    ],
)
def test_the_client_is_the_last_one_whom_no_trusted_proxy_vouches_for(
    peer: str | None, forwarded: list[str], client: str | None
) -> None:
    assert ClientIpResolver(PROXIES).resolve(peer, forwarded) == client


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert ClientIpResolver([]).resolve("127.0.0.1", ["203.0.113.9"]) == "127.0.0.1"


def test_a_setting_that_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match="GPU_DEV_TRUSTED_PROXIES"):
        load_settings({"GPU_DEV_TRUSTED_PROXIES": "10.0.0.0/8,cloudfront"})
    assert load_settings({"GPU_DEV_TRUSTED_PROXIES": "10.0.0.0/8, ::1"}).guarding.trusted_proxies == (
        "10.0.0.0/8",
        "::1",
    )


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        (None, "unknown"),
    ],
)
def test_an_address_counts_for_all_that_is_in_one_hand(address: str | None, whose: str) -> None:
    assert rate_limit_key(address) == whose


def test_a_bucket_lets_a_burst_through_and_then_a_steady_trickle() -> None:
    now = 0.0
    buckets = TokenBuckets(3, 60, monotonic=lambda: now)
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a") == 1
    assert buckets.take("b") == 0
    now = 0.5
    assert buckets.take("a") == 0.5
    now = 1.0
    assert buckets.take("a") == 0
    assert buckets.take("a") == 1
    now = 1000.0
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 1]


def test_buckets_are_forgotten_before_they_fill_the_memory() -> None:
    now = 0.0
    buckets = TokenBuckets(1, 60, max_buckets=100, monotonic=lambda: now)
    for number in range(1000):
        now += 0.001
        assert buckets.take(str(number)) == 0
    assert len(buckets._buckets) <= 100
    assert buckets.take("999") > 0, "who came last is still known"


async def test_logins_are_counted_by_address_whatever_comes_of_them(api: Api) -> None:
    settings = replace(api.services.settings, guarding=RequestGuardSettings(trusted_proxies=("127.0.0.1",)))
    api.restart(settings=settings, request_limits=RequestLimits(logins=Rate(3, 60)))
    client = api.anonymous()

    async def log_in(address: str) -> int:
        answer = await client.post(
            "/v1/auth/invitation-login", json={"secret": "wrong"}, headers={"X-Forwarded-For": address}
        )
        if answer.status_code == 429:
            refused(answer, 429, "too_often")
            assert int(answer.headers["retry-after"]) >= 1
        return answer.status_code

    assert 429 not in [await log_in("203.0.113.9") for _ in range(3)]
    assert await log_in("203.0.113.9") == 429
    assert await log_in("6.6.6.6, 203.0.113.9") == 429, "a forged address helps nobody"
    assert await log_in("203.0.113.10") != 429


async def test_guessing_keys_over_http_is_answered_429_soon(api: Api) -> None:
    api.restart(request_limits=RequestLimits(wrong_keys=Rate(5, 60)))
    statuses = []
    for number in range(8):
        answer = await api.anonymous({"Authorization": f"Bearer gpudev_guess{number}"}).get("/v1/jobs")
        statuses.append(answer.status_code)
    assert statuses[:5] == [401] * 5
    assert 429 in statuses


async def test_answers_tell_browsers_to_do_nothing_with_them(api: Api, subtests: pytest.Subtests) -> None:
    client = await api.as_user()
    for path in ("/v1/jobs", "/v1/jobs/ffff", "/health/live", "/nowhere", "/openapi.json", "/docs"):
        with subtests.test(path=path):
            headers = (await client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers.get("cache-control") == ("no-store" if path.startswith("/v1") else None)
            assert "server" not in headers
            assert "strict-transport-security" not in headers, "nothing here came through TLS"


async def test_no_page_of_another_origin_may_ask_unless_a_setting_says_so(api: Api) -> None:
    asking = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await (await api.as_user()).get("/v1/jobs", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await api.anonymous().request("OPTIONS", "/v1/jobs/submit", headers=asking)).status_code == 405
    opened = RequestGuardSettings(cors_origins=("https://portal.example",))
    api.restart(settings=replace(api.services.settings, guarding=opened))
    refused_one = await api.anonymous().request("OPTIONS", "/v1/jobs/submit", headers=asking)
    assert "access-control-allow-origin" not in refused_one.headers
    friend = {"Origin": "https://portal.example", "Access-Control-Request-Method": "POST"}
    answer = await api.anonymous().request("OPTIONS", "/v1/jobs/submit", headers=friend)
    assert answer.headers["access-control-allow-origin"] == "https://portal.example"
    assert "access-control-allow-credentials" not in answer.headers


def test_idle_connections_outlive_those_of_what_stands_before_us() -> None:
    """Else it sends a request just when we hang up, and somebody is told 502."""
    root = Path(__file__).parents[3]
    said = {
        "docs/operations/reverse-proxies.md": r"keepalive_timeout (\d+)s;",
        "infra/aws/load-balancers.tf": r"origin_keepalive_timeout = (\d+)",
    }
    for file, pattern in said.items():
        (kept,) = re.findall(pattern, (root / file).read_text())
        assert int(kept) < RequestGuardSettings().keep_alive.total_seconds(), file
    (google,) = re.findall(r'GPU_DEV_KEEP_ALIVE = "(\d+)"', (root / "infra/gcp/releases.tf").read_text())
    assert int(google) > 600, "Google's load balancers keep idle connections for so long"
