"""Public SSH keys that GitHub publishes for its users.

GitHub's response is untrusted: its size is limited, and only valid keys are kept.
"""

import asyncio
from collections.abc import Sequence

import httpx2

from gpudev.domain.access.ssh_keys import check_github_user, usable_public_keys
from gpudev.domain.errors import Invalid, Unavailable

_MAX_BYTES = 256 * 1024


class GitHubKeys:
    """A KeySource. `base_url` comes from the settings, never from a user; redirects are not followed."""

    def __init__(self, base_url: str, *, seconds: float = 5.0) -> None:
        self._base_url = base_url.rstrip("/")
        self._seconds = seconds
        # Uncompressed, so that the bytes counted are the bytes kept.
        self._client = httpx2.AsyncClient(
            timeout=seconds, follow_redirects=False, headers={"Accept-Encoding": "identity"}
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def public_keys(self, github_user: str) -> Sequence[str]:
        check_github_user(github_user)
        try:
            # The client's own timeouts are per step; this one is for the whole response.
            async with asyncio.timeout(self._seconds):
                text = await self._fetch(github_user)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise Unavailable(
                f"GitHub does not answer, so the keys of {github_user!r} cannot be fetched; "
                "try again, or send ssh_public_keys"
            ) from error
        keys = usable_public_keys(text.splitlines())
        if not keys:
            raise Invalid(
                f"no usable SSH key of {github_user!r} on GitHub; add one there, or send ssh_public_keys",
                field="github_user",
            )
        return keys

    async def _fetch(self, github_user: str) -> str:
        async with self._client.stream("GET", f"{self._base_url}/{github_user}.keys") as response:
            if response.status_code == httpx2.codes.NOT_FOUND:
                raise Invalid(f"no GitHub user named {github_user!r}", field="github_user")
            if response.status_code != httpx2.codes.OK:
                raise Unavailable(
                    f"GitHub answered {response.status_code} for the keys of {github_user!r}; "
                    "try again, or send ssh_public_keys"
                )
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise Unavailable(f"GitHub's list of keys for {github_user!r} is longer than {_MAX_BYTES} bytes")
        return body.decode("utf-8", errors="replace")
