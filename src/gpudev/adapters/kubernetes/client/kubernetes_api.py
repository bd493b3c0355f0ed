"""Calls to the Kubernetes API server: plain JSON in, plain JSON out.

The client library's generated model classes are not used: they cost more time than our own work. Its code for
credentials and TLS is used.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, cast

import aiohttp
import msgspec
import orjson

from gpudev.adapters.kubernetes.client.api_transport import ApiRejected, ApiTransport, ResourceVersionExpired
from gpudev.adapters.kubernetes.client.cluster_credentials import CredentialSource, choose_credential_source
from gpudev.adapters.kubernetes.client.resource_kinds import POD, Manifest, ResourceKind, get_kind
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.settings import KubernetesSettings

# Decoding of JSON: whole objects, or of listings only the fields that are needed.


class _ListMetadata(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - as on the wire
    next_page: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct):
    metadata: _ListMetadata
    items: msgspec.Raw = msgspec.Raw(b"null")


_LIST_DECODER = msgspec.json.Decoder(_RawList)


@dataclass(frozen=True, slots=True)
class ListResponse:
    resource_version: str
    continue_token: str
    """Fetches the next page; empty: this is the last page."""
    _raw_items: msgspec.Raw

    def decode_items(self, shape: type | None = None) -> Sequence[Manifest]:
        try:
            return cast("Sequence[Manifest]", _items_decoder(shape).decode(self._raw_items) or ())
        except msgspec.DecodeError as error:
            raise _unreadable_error() from error


def decode_list(body: bytes) -> ListResponse:
    """Items are decoded later, on request, so that the next page can be fetched first."""
    try:
        listed = _LIST_DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise _unreadable_error() from error
    return ListResponse(listed.metadata.resourceVersion, listed.metadata.next_page, listed.items)


def decode_json(body: bytes) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", orjson.loads(body))
    except ValueError as error:
        raise _unreadable_error() from error


@cache
def _items_decoder(shape: type | None) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[Any] | None if shape is None else list[shape] | None)  # type: ignore[valid-type]


def _unreadable_error() -> Unavailable:
    return Unavailable("the Kubernetes API server sent an unreadable response")


__all__ = ["ApiRejected", "KubernetesApi", "ListPage", "ResourceVersionExpired"]

FIELD_MANAGER = "gpu-dev"
_PAGE_SIZE = 250
_YIELDS_TO_SEND = 3
"""How often the event loop must run until a started request has been sent."""
_MAX_LOG_BYTES = 64 * 1024
MAX_OUTPUT_BYTES = 1024 * 1024
_WATCH_IDLE_MARGIN_S = 2.0


@dataclass(frozen=True, slots=True)
class ListPage:
    items: Sequence[Manifest]
    resource_version: str
    """The same on every page of one listing."""


class KubernetesApi:
    """Every call may raise Unavailable (nothing is known) or ApiRejected (a ClusterError)."""

    def __init__(self, credentials: CredentialSource, namespace: str) -> None:
        self.namespace = namespace
        self._transport = ApiTransport(credentials)

    async def close(self) -> None:
        await self._transport.close()

    async def list_pages(
        self,
        kind: ResourceKind,
        *,
        namespace: str | None = None,
        selector: str = "",
        field_selector: str = "",
        size: int = _PAGE_SIZE,
        shape: type | None = None,
    ) -> AsyncIterator[ListPage]:
        """All objects at one moment, page by page; all namespaces unless one is named. A listing is as new as the API
        server's own data, never an older cached one. The next page is fetched while the caller reads the current one.
        `shape`: the fields to decode (a TypedDict of cache.object_records); None: all fields."""
        params = _without_empty(limit=str(size), labelSelector=selector, fieldSelector=field_selector)

        def fetch_page(**more: str) -> asyncio.Future[bytes]:
            return asyncio.ensure_future(self._transport.request("GET", kind.path(namespace), params | more))

        next_page = fetch_page()
        try:
            while True:
                listed = decode_list(await next_page)
                if listed.continue_token:
                    next_page = fetch_page(**{"continue": listed.continue_token})
                    for _ in range(_YIELDS_TO_SEND):
                        await asyncio.sleep(0)
                yield ListPage(listed.decode_items(shape), listed.resource_version)
                if not listed.continue_token:
                    return
        finally:
            next_page.cancel()
            await asyncio.wait({next_page})

    async def list_objects(
        self, kind: ResourceKind, *, namespace: str | None = None, all_namespaces: bool = False, selector: str = ""
    ) -> tuple[list[Manifest], str]:
        """The objects in our (or the named) namespace, and the resource version. Complete, or it raises."""
        searched = None if all_namespaces else namespace or self.namespace
        for is_retry in (False, True):
            try:
                items: list[Manifest] = []
                version = ""
                async for page in self.list_pages(kind, namespace=searched, selector=selector):
                    items.extend(page.items)
                    version = page.resource_version
                return items, version
            except ResourceVersionExpired:  # between two pages: start again from the first
                if is_retry:
                    raise
        raise AssertionError("unreachable: the second attempt returns or raises")

    @contextlib.asynccontextmanager
    async def watch(
        self,
        kind: ResourceKind,
        resource_version: str,
        *,
        timeout: timedelta,
        namespace: str | None = None,
        selector: str = "",
    ) -> AsyncIterator[AsyncIterator[tuple[str, Manifest]]]:
        """Events after `resource_version`, as (ADDED, MODIFIED, DELETED or BOOKMARK, object), for at most `timeout`.
        Entered when the API server has accepted the watch. Raises ResourceVersionExpired when it no longer has that
        version."""
        params = _without_empty(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(max(1, round(timeout.total_seconds()))),
            labelSelector=selector,
        )
        idle_timeout_s = timeout.total_seconds() + _WATCH_IDLE_MARGIN_S
        async with self._transport.stream(kind.path(namespace), params, idle_timeout_s) as chunks:
            yield _parse_events(chunks)

    async def find_object(self, kind: ResourceKind, name: str, *, namespace: str | None = None) -> Manifest | None:
        try:
            return decode_json(await self._transport.request("GET", self._path(kind, namespace, name)))
        except ApiRejected as error:
            if error.status != 404:
                raise
            return None

    async def create(self, manifest: Manifest) -> Manifest:
        """Raises ApiRejected with reason AlreadyExists when the name is taken."""
        path = self._path(get_kind(manifest), manifest["metadata"].get("namespace"))
        params = {"fieldManager": FIELD_MANAGER}
        return decode_json(await self._transport.request("POST", path, params, manifest))

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply: the object then exists, with the manifest's values in the fields it names."""
        metadata = manifest["metadata"]
        path = self._path(get_kind(manifest), metadata.get("namespace"), metadata["name"])
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return decode_json(
            await self._transport.request("PATCH", path, params, manifest, "application/apply-patch+yaml")
        )

    async def patch(
        self,
        kind: ResourceKind,
        name: str,
        change: Mapping[str, Any],
        *,
        namespace: str | None = None,
    ) -> Manifest | None:
        """Merge patch. None: not found."""
        path = self._path(kind, namespace, name)
        params = {"fieldManager": FIELD_MANAGER}
        try:
            response = await self._transport.request("PATCH", path, params, change, "application/merge-patch+json")
        except ApiRejected as error:
            if error.status != 404:
                raise
            return None
        return decode_json(response)

    async def delete(
        self,
        kind: ResourceKind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Request deletion. False: not found; with `uid`, also when another object has the name now."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._transport.request("DELETE", self._path(kind, namespace, name), body=options)
        except ApiRejected as error:
            if error.status == 404 or (error.status == 409 and uid is not None):
                return False
            raise
        return True

    async def find_pod_log(
        self,
        name: str,
        container: str,
        tail_lines: int,
        *,
        namespace: str | None = None,
        previous: bool = False,
        max_bytes: int = _MAX_LOG_BYTES,
    ) -> str | None:
        """The last lines of a container's log; None: it has not started, or its pod is gone."""
        params = _without_empty(
            container=container,
            tailLines=str(tail_lines),
            limitBytes=str(max_bytes),
            previous="true" if previous else "",
        )
        try:
            text = await self._transport.request("GET", self._path(POD, namespace, name) + "/log", params)
        except ApiRejected as error:
            if error.status not in (400, 404):  # 400: it has not started
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
        max_bytes: int = MAX_OUTPUT_BYTES,
    ) -> bytes:
        """Run a command in a pod and return its output. Raises ClusterError with its error output when it fails."""
        path = self._path(POD, namespace, name) + "/exec"
        return await run_in_pod(
            self._transport, path, container, argv, stdin=stdin, timeout=timeout, max_bytes=max_bytes
        )

    async def get_server_version(self) -> str:
        """Also the cheapest check that the API server answers."""
        return str(decode_json(await self._transport.request("GET", "/version"))["gitVersion"])

    def _path(self, kind: ResourceKind, namespace: str | None, name: str | None = None) -> str:
        return kind.path(namespace or self.namespace, name)


def connect_api(settings: KubernetesSettings) -> KubernetesApi:
    """Nothing is sent before the first call."""
    return KubernetesApi(choose_credential_source(settings), settings.namespace)


async def _parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Manifest]]:
    """One JSON object per line. A line may arrive in many pieces; only complete lines are parsed."""
    pieces: list[bytes] = []
    async for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            pieces.append(line)
            text = b"".join(pieces)
            pieces.clear()
            if text.strip():
                yield _parse_event(text)
        if rest:
            pieces.append(rest)


def _parse_event(text: bytes) -> tuple[str, Manifest]:
    event = decode_json(text)
    subject = event["object"]
    if event["type"] == "ERROR":
        message = subject.get("message", "the watch failed")
        raise (
            ResourceVersionExpired(message)
            if subject.get("code") == 410
            else Unavailable(f"the watch failed: {message}")
        )
    return event["type"], subject


def _without_empty(**params: str) -> dict[str, str]:
    return {name: value for name, value in params.items() if value}


# Commands in pods, over a WebSocket of the API server.


_PROTOCOL = "v5.channel.k8s.io"
"""The first version that can close standard input."""
_STDIN, _STDOUT, _STDERR, _RESULT, _CLOSE = 0, 1, 2, 3, 255
_CHUNK_BYTES = 16 * 1024


async def run_in_pod(
    transport: ApiTransport,
    path: str,
    container: str,
    argv: Sequence[str],
    *,
    stdin: bytes,
    timeout: timedelta,
    max_bytes: int = MAX_OUTPUT_BYTES,
) -> bytes:
    """Return its standard output. Untrusted, and limited to `max_bytes`: the pod's user may replace the program."""
    params = [("container", container), ("stdout", "1"), ("stderr", "1")]
    params += [("stdin", "1")] if stdin else []
    params += [("command", word) for word in argv]
    try:
        async with asyncio.timeout(timeout.total_seconds()), transport.websocket(path, params, (_PROTOCOL,)) as socket:
            if stdin and socket.protocol != _PROTOCOL:
                raise ClusterError("the cluster cannot close a command's input (expected Kubernetes 1.30 or newer)")
            # Concurrent with reading: a command that writes while it reads would block, and so would we.
            sending = asyncio.create_task(_send_stdin(socket, stdin))
            try:
                return await _read_result(socket, max_bytes)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except TimeoutError as error:
        raise Unavailable(f"a command in the pod did not end within {timeout.total_seconds():g} s") from error


async def _send_stdin(socket: aiohttp.ClientWebSocketResponse, stdin: bytes) -> None:
    for start in range(0, len(stdin), _CHUNK_BYTES):
        await socket.send_bytes(bytes((_STDIN,)) + stdin[start : start + _CHUNK_BYTES])
    if stdin:
        await socket.send_bytes(bytes((_CLOSE, _STDIN)))


async def _read_result(socket: aiohttp.ClientWebSocketResponse, max_bytes: int) -> bytes:
    written: dict[int, bytearray] = {_STDOUT: bytearray(), _STDERR: bytearray(), _RESULT: bytearray()}
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data and message.data[0] in written:
            written[message.data[0]] += message.data[1:]
            if sum(map(len, written.values())) > max_bytes:
                raise ClusterError(f"a command in the pod wrote more than {max_bytes} bytes")
    if not written[_RESULT]:
        raise Unavailable("the connection to the pod was lost before the command ended")
    result: dict[str, Any] = orjson.loads(bytes(written[_RESULT]))
    if result.get("status") != "Success":
        reason = bytes(written[_STDERR]).decode("utf-8", "replace").strip()
        raise ClusterError(f"a command in the pod failed: {reason or result.get('message', 'no reason given')}")
    return bytes(written[_STDOUT])
