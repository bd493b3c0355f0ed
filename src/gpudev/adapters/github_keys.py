"""The public keys GitHub publishes for its users.

GitHub's answer is a stranger's text: only a bounded part of it is read, and only what is a key is kept.
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
        # Uncompressed, so that what is counted while reading is what is held.
        self._client = httpx2.AsyncClient(
            timeout=seconds, follow_redirects=False, headers={"Accept-Encoding": "identity"}
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def public_keys(self, github_user: str) -> Sequence[str]:
        check_github_user(github_user)
        try:
            # The client's own limits are per step; this one is for the whole answer, however slowly it drips.
            async with asyncio.timeout(self._seconds):
                text = await self._fetch(github_user)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise Unavailable(
                f"GitHub does not answer, so the keys of {github_user!r} are not known; "
                "try again, or send ssh_public_keys"
            ) from error
        keys = usable_public_keys(text.splitlines())
        if not keys:
            raise Invalid(
                f"GitHub publishes no usable SSH key of {github_user!r}; add one there, or send ssh_public_keys",
                field="github_user",
            )
        return keys

    async def _fetch(self, github_user: str) -> str:
        async with self._client.stream("GET", f"{self._base_url}/{github_user}.keys") as answer:
            if answer.status_code == httpx2.codes.NOT_FOUND:
                raise Invalid(f"GitHub knows no user {github_user!r}", field="github_user")
            if answer.status_code != httpx2.codes.OK:
                raise Unavailable(
                    f"GitHub answered {answer.status_code} for the keys of {github_user!r}; "
                    "try again, or send ssh_public_keys"
                )
            body = bytearray()
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise Unavailable(f"GitHub's answer for {github_user!r} is too long to be a list of keys")
        return body.decode("utf-8", errors="replace")
