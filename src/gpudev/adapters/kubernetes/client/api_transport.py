"""HTTP requests to the API server: authorization, safe retries, error mapping.

Unavailable means that nothing is known: the API server was unreachable, failed itself or stayed too busy. ApiRejected
means that it understood the request and rejected it, with its message. This module knows no kinds and no objects.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import orjson
from kubernetes_asyncio.client.rest import RESTClientObject

from gpudev.adapters.kubernetes.client.cluster_credentials import ApiCredentials, CredentialSource
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import ClusterError, Unavailable

_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 2.0
_CONNECT_TIMEOUT_S = 5.0
_RESPONSE_TIMEOUT_S = 15.0
_RETRY_WINDOW_S = 10.0
"""No retry after this time: on a silent connection one attempt is enough, because the caller will retry."""
_TOO_MANY_REQUESTS = 429
_UNAUTHORIZED = 401
_GONE = 410
_IDEMPOTENT_METHODS = ("GET", "PATCH", "DELETE")

Parameters = Mapping[str, str] | list[tuple[str, str]]


class ApiRejected(ClusterError):
    """The API server understood the request and rejected it."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """Kubernetes' status reason: NotFound, AlreadyExists, Conflict, Invalid, Forbidden …"""


class ResourceVersionExpired(Unavailable):
    """The API server no longer has the requested resource version; the objects must be listed again."""


class ApiTransport:
    def __init__(self, credentials: CredentialSource) -> None:
        self._credentials = credentials
        self._client: RESTClientObject | None = None
        self._client_settings: tuple[object, ...] = ()
        self._closing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await asyncio.gather(*self._closing)

    async def request(
        self,
        method: str,
        path: str,
        params: Parameters | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Return the response body. Raises Unavailable, ApiRejected or ResourceVersionExpired."""
        data = None if body is None else orjson.dumps(body)
        timeout = aiohttp.ClientTimeout(total=_RESPONSE_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S)
        began_at = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self._exchange(
                    method, path, params, timeout, data=data, content_type=content_type if data else None
                ) as response:
                    return await response.read()
            except _RetryableError as problem:
                is_last = attempt == _ATTEMPTS or time.monotonic() - began_at > _RETRY_WINDOW_S
                if is_last or not (problem.was_not_executed or method in _IDEMPOTENT_METHODS):
                    raise problem.error from problem.__cause__
                jitter = random.uniform(0.5, 1.5)
                await asyncio.sleep(problem.pause or backoff(attempt, _FIRST_PAUSE_S, jitter=jitter))
        raise AssertionError("unreachable: the last attempt returns or raises")

    @contextlib.asynccontextmanager
    async def stream(self, path: str, params: Parameters, idle_timeout_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream the response body. Entered when the API server has accepted the request; never retried here. A
        connection that is silent for `idle_timeout_s` counts as dead."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=idle_timeout_s)
        try:
            async with self._exchange("GET", path, params, timeout) as response:
                yield response.content.iter_any()
        except _RetryableError as problem:
            raise problem.error from problem.__cause__

    @contextlib.asynccontextmanager
    async def websocket(
        self, path: str, params: Parameters, protocols: tuple[str, ...]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        access, client = await self._ensure_client()
        try:
            async with client.pool_manager.ws_connect(
                _url(access, path, "ws"),
                params=params,
                headers=_headers(access),
                protocols=protocols,
                max_msg_size=0,
                heartbeat=_CONNECT_TIMEOUT_S,
                **_connection_options(client),
            ) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            # The API server's reason is in the response body, which the library does not read.
            message = f"the pod rejected the session: {error.message} ({error.status})"
            if error.status >= 500 or error.status in (_TOO_MANY_REQUESTS, _UNAUTHORIZED):
                raise Unavailable(message) from error
            raise ApiRejected(message, status=error.status, reason="") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the Kubernetes API server does not answer: {_describe_error(error)}") from error

    @contextlib.asynccontextmanager
    async def _exchange(
        self,
        method: str,
        path: str,
        params: Parameters | None,
        timeout: aiohttp.ClientTimeout,
        *,
        data: bytes | None = None,
        content_type: str | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One attempt, repeated once with new credentials if the API server rejects the current ones."""
        access, client = await self._ensure_client()
        for is_renewed in (False, True):
            try:
                async with client.pool_manager.request(
                    method,
                    _url(access, path),
                    params=params,
                    data=data,
                    headers=_headers(access, content_type),
                    timeout=timeout,
                    **_connection_options(client),
                ) as response:
                    if response.status == _UNAUTHORIZED and not is_renewed:
                        access, client = await self._ensure_client(rejected=access)
                        continue
                    if response.status >= 400:
                        _raise_for_status(response.status, await response.read(), _parse_retry_after(response))
                    yield response
                    return
            except aiohttp.ClientConnectorError as error:
                raise _RetryableError(_unreachable_error(error), was_not_executed=True) from error
            except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
                raise _RetryableError(_unreachable_error(error)) from error

    async def _ensure_client(self, rejected: ApiCredentials | None = None) -> tuple[ApiCredentials, RESTClientObject]:
        access = await self._credentials.get_credentials(rejected=rejected)
        if self._client is None or access.connection_settings != self._client_settings:
            if self._client is not None:  # requests on the old connections fail and are retried
                self._close_in_background(self._client)
            self._client = RESTClientObject(access.configuration)
            self._client_settings = access.connection_settings
        return access, self._client

    def _close_in_background(self, client: RESTClientObject) -> None:
        task = asyncio.create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _RetryableError(Exception):
    def __init__(self, error: Unavailable, *, was_not_executed: bool = False, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.was_not_executed = was_not_executed
        """The API server certainly did not execute the request."""
        self.pause = pause
        """Seconds to wait, as the API server requested; None: it did not."""


def _raise_for_status(status: int, body: bytes, retry_after: float | None = None) -> None:
    try:
        answer = orjson.loads(body)
    except ValueError:
        answer = {"message": body[:300].decode("utf-8", "replace")}
    if not isinstance(answer, dict):
        answer = {}
    message, reason = answer.get("message") or f"status {status}", answer.get("reason") or ""
    if status == _GONE:
        raise ResourceVersionExpired(message)
    if status == _TOO_MANY_REQUESTS:
        pause = None if retry_after is None else min(retry_after, _MAX_PAUSE_S)
        raise _RetryableError(
            Unavailable(f"the Kubernetes API server is too busy: {message}"), was_not_executed=True, pause=pause
        )
    if status >= 500:
        raise _RetryableError(Unavailable(f"the Kubernetes API server failed ({status}): {message}"))
    if status == _UNAUTHORIZED:
        raise Unavailable(f"the Kubernetes API server rejects our credentials: {message}")
    raise ApiRejected(message, status=status, reason=reason)


def _unreachable_error(error: Exception) -> Unavailable:
    return Unavailable(f"the Kubernetes API server does not answer: {_describe_error(error)}")


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__


def _parse_retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        return float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None


def _url(access: ApiCredentials, path: str, scheme: str = "http") -> str:
    return str(access.configuration.host).rstrip("/").replace("http", scheme, 1) + path


def _headers(access: ApiCredentials, content_type: str | None = None) -> dict[str, str]:
    headers = {"Authorization": access.authorization, "Content-Type": content_type}
    return {name: value for name, value in headers.items() if value}


def _connection_options(client: RESTClientObject) -> dict[str, Any]:
    """Connection options that a kubeconfig may set."""
    options = {"proxy": client.proxy, "proxy_headers": client.proxy_headers, "server_hostname": client.server_hostname}
    return {name: value for name, value in options.items() if value}
