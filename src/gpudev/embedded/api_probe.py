"""Requests of `up` to the API it started. Never through an HTTP proxy, because the API is on this machine."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from gpudev.wire import codec
from gpudev.wire.cluster import ClusterStatus


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    status: int
    body: Any
    """Decoded JSON; None if the response was not JSON."""


def probe(url: str, *, api_key: str | None = None, timeout: float = 5.0) -> ProbeResponse | None:
    """None: no response."""
    headers = {"Accept": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            return ProbeResponse(response.status, _decode(response.read()))
    except urllib.error.HTTPError as error:
        with error:
            return ProbeResponse(error.code, _decode(error.read()))
    except (urllib.error.URLError, OSError):
        return None


def is_live(api_url: str) -> bool:
    response = probe(f"{api_url}/health/live", timeout=2.0)
    return response is not None and response.status == 200


def why_not_ready(api_url: str) -> str | None:
    """None: the database answers and a processor is alive."""
    response = probe(f"{api_url}/health/ready")
    if response is None:
        return f"{api_url} does not response"
    health = response.body if isinstance(response.body, dict) else {}
    if response.status == 200 and health.get("status") == "ok":
        return None
    checks = health.get("checks")
    if isinstance(checks, dict) and checks:
        return ", ".join(f"{name}: {state}" for name, state in checks.items())
    return f"{api_url}/health/ready answers {response.status}"


def is_key_accepted(api_url: str, api_key: str) -> bool:
    response = probe(f"{api_url}/v1/cluster/status", api_key=api_key)
    return response is not None and response.status == 200


def find_cluster_status(api_url: str, api_key: str) -> ClusterStatus | None:
    response = probe(f"{api_url}/v1/cluster/status", api_key=api_key)
    if response is None or response.status != 200:
        return None
    return codec.decode_model(ClusterStatus, response.body)


def _decode(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
