"""The Kubernetes API as we use it: plain JSON in, plain JSON out. It decides nothing.

The generated model classes of the client library are left aside: they cost more than the work we have to do. Its ways
to find and renew credentials and to set up TLS are what we use.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpudev.adapters.kubernetes.client.api_transport import Expired, Refused, Transport
from gpudev.adapters.kubernetes.client.cluster_credentials import Credentials, find_credentials
from gpudev.adapters.kubernetes.client.pod_exec import MOST_BYTES, run_in_pod
from gpudev.adapters.kubernetes.client.resource_kinds import POD, Kind, Manifest, kind_of
from gpudev.adapters.kubernetes.decoding import read_json, read_listing
from gpudev.domain.errors import Unavailable
from gpudev.settings import KubernetesSettings

__all__ = ["Expired", "KubernetesApi", "Page", "Refused"]

FIELD_MANAGER = "gpu-dev"
_PAGE = 250
_TURNS_TO_SEND = 3
"""Of the event loop, until a request that was begun has gone out."""
_MOST_LOG_BYTES = 64 * 1024
_SILENCE_AFTER_END_S = 2.0


@dataclass(frozen=True, slots=True)
class Page:
    items: Sequence[Manifest]
    resource_version: str
    """The same on every page of one listing."""


class KubernetesApi:
    """Every call may raise Unavailable (nothing is known) or Refused (a ClusterError: it said no)."""

    def __init__(self, credentials: Credentials, namespace: str) -> None:
        self.namespace = namespace
        self.source = credentials.source
        """Where the credentials come from, in words."""
        self._transport = Transport(credentials)

    async def close(self) -> None:
        await self._transport.close()

    async def pages(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        selector: str = "",
        fields: str = "",
        size: int = _PAGE,
        shape: type | None = None,
    ) -> AsyncIterator[Page]:
        """All there is at one moment, page by page; of a namespaced kind across all namespaces unless one is named.
        Each listing is as new as the API server's own knowledge, never a cached older one. The next page is on its way
        while one is read. `shape`: what of each object is read (`shapes`); None: all of it."""
        params = _without_blanks(limit=str(size), labelSelector=selector, fieldSelector=fields)

        def ask(**more: str) -> asyncio.Future[bytes]:
            return asyncio.ensure_future(self._transport.request("GET", kind.path(namespace), params | more))

        coming = ask()
        try:
            while True:
                listed = read_listing(await coming)
                if listed.next_page:
                    coming = ask(**{"continue": listed.next_page})
                    for _ in range(_TURNS_TO_SEND):
                        await asyncio.sleep(0)
                yield Page(listed.items(shape), listed.resource_version)
                if not listed.next_page:
                    return
        finally:
            coming.cancel()
            await asyncio.wait({coming})

    async def list(
        self, kind: Kind, *, namespace: str | None = None, everywhere: bool = False, selector: str = ""
    ) -> tuple[list[Manifest], str]:
        """The objects in our (or the named) namespace, and the version they were listed at. Complete, or it raises."""
        within = None if everywhere else namespace or self.namespace
        for is_again in (False, True):
            try:
                items: list[Manifest] = []
                version = ""
                async for page in self.pages(kind, namespace=within, selector=selector):
                    items.extend(page.items)
                    version = page.resource_version
                return items, version
            except Expired:  # between two pages; from the start it is as if it had not been begun
                if is_again:
                    raise
        raise AssertionError("the second listing answers or raises")

    @contextlib.asynccontextmanager
    async def watch(
        self,
        kind: Kind,
        resource_version: str,
        *,
        timeout: timedelta,
        namespace: str | None = None,
        selector: str = "",
    ) -> AsyncIterator[AsyncIterator[tuple[str, Manifest]]]:
        """What happened after `resource_version`, as (ADDED, MODIFIED, DELETED or BOOKMARK, object), for at most
        `timeout`. Entered once the API server has agreed. Raises Expired when it no longer remembers."""
        params = _without_blanks(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(max(1, round(timeout.total_seconds()))),
            labelSelector=selector,
        )
        silent_for = timeout.total_seconds() + _SILENCE_AFTER_END_S
        async with self._transport.stream(kind.path(namespace), params, silent_for) as chunks:
            yield _events(chunks)

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Manifest | None:
        try:
            return read_json(await self._transport.request("GET", self._path(kind, namespace, name)))
        except Refused as refused:
            if refused.status != 404:
                raise
            return None

    async def create(self, manifest: Manifest) -> Manifest:
        """Refused with reason AlreadyExists when the name is taken."""
        path = self._path(kind_of(manifest), manifest["metadata"].get("namespace"))
        params = {"fieldManager": FIELD_MANAGER}
        return read_json(await self._transport.request("POST", path, params, manifest))

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply: there it is, with the fields we name as we name them."""
        metadata = manifest["metadata"]
        path = self._path(kind_of(manifest), metadata.get("namespace"), metadata["name"])
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return read_json(await self._transport.request("PATCH", path, params, manifest, "application/apply-patch+yaml"))

    async def patch(
        self, kind: Kind, name: str, change: Mapping[str, Any], *, namespace: str | None = None, part: str = ""
    ) -> Manifest | None:
        """A merge patch; `part`: of a subresource ("status"). None: not found."""
        path = self._path(kind, namespace, name) + (f"/{part}" if part else "")
        params = {"fieldManager": FIELD_MANAGER}
        try:
            answer = await self._transport.request("PATCH", path, params, change, "application/merge-patch+json")
        except Refused as refused:
            if refused.status != 404:
                raise
            return None
        return read_json(answer)

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Ask for its end. False: it is not there (any more); with `uid`, also when the name is another's now."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._transport.request("DELETE", self._path(kind, namespace, name), body=options)
        except Refused as refused:
            if refused.status == 404 or (refused.status == 409 and uid is not None):
                return False
            raise
        return True

    async def pod_log(
        self,
        name: str,
        container: str,
        tail_lines: int,
        *,
        namespace: str | None = None,
        previous: bool = False,
        most_bytes: int = _MOST_LOG_BYTES,
    ) -> str | None:
        """The last lines a container wrote; None: it never wrote any, or its pod is gone."""
        params = _without_blanks(
            container=container,
            tailLines=str(tail_lines),
            limitBytes=str(most_bytes),
            previous="true" if previous else "",
        )
        try:
            text = await self._transport.request("GET", self._path(POD, namespace, name) + "/log", params)
        except Refused as refused:
            if refused.status not in (400, 404):  # 400: it has not begun
                raise
            return None
        return text.decode("utf-8", "replace")

    async def exec_in_pod(
        self,
        name: str,
        container: str,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        namespace: str | None = None,
        timeout: timedelta = timedelta(seconds=10),
        most_bytes: int = MOST_BYTES,
    ) -> bytes:
        """Run a command in there and answer what it wrote. Raises ClusterError with its words when it fails."""
        path = self._path(POD, namespace, name) + "/exec"
        return await run_in_pod(
            self._transport, path, container, argv, stdin=stdin, timeout=timeout, most_bytes=most_bytes
        )

    async def server_version(self) -> str:
        """Also the cheapest way to learn whether it answers."""
        return str(read_json(await self._transport.request("GET", "/version"))["gitVersion"])

    def _path(self, kind: Kind, namespace: str | None, name: str | None = None) -> str:
        return kind.path(namespace or self.namespace, name)


def connect(settings: KubernetesSettings) -> KubernetesApi:
    """Ready to be asked; nothing is sent before the first question."""
    return KubernetesApi(find_credentials(settings), settings.namespace)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Manifest]]:
    """One JSON object a line. A line may come in many pieces, and is told only when whole."""
    pieces: list[bytes] = []
    async for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            pieces.append(line)
            text = b"".join(pieces)
            pieces.clear()
            if text.strip():
                yield _event(text)
        if rest:
            pieces.append(rest)


def _event(text: bytes) -> tuple[str, Manifest]:
    event = read_json(text)
    subject = event["object"]
    if event["type"] == "ERROR":
        message = subject.get("message", "the watch failed")
        raise Expired(message) if subject.get("code") == 410 else Unavailable(f"the watch failed: {message}")
    return event["type"], subject


def _without_blanks(**params: str) -> dict[str, str]:
    return {name: value for name, value in params.items() if value}
