"""Calls to AWS: signed, retried, with a deadline and mapped errors; listings page by page.

The AWS library retries in its adaptive mode: it slows down when AWS throttles it. This module does not know
what the actions mean.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpudev.adapters.aws.parsing import NotAwsResponse, install_fast_parser
from gpudev.adapters.aws.permissions import Action
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.settings import AwsSettings

_SERVICES = ("ec2", "autoscaling")


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Timeouts and attempts. Not settings: these values fit EC2 everywhere."""

    connect_timeout: timedelta = timedelta(seconds=5)
    read_timeout: timedelta = timedelta(seconds=30)
    """How long a response may pause."""
    deadline: timedelta = timedelta(seconds=120)
    """Of one call (or one page of a listing) with all its attempts."""
    attempts: int = 6
    """Of one call; the AWS library chooses the pauses."""
    settle_time: timedelta = timedelta(seconds=30)
    """How long AWS may not show a new resource yet: it is eventually consistent."""

    @property
    def appears_within(self) -> timedelta:
        """Time from the start of a creation until AWS certainly shows the resource."""
        return self.deadline + self.settle_time


CALL_LIMITS = CallLimits()


class AwsClient:
    def __init__(self, settings: AwsSettings, limits: CallLimits = CALL_LIMITS) -> None:
        self._settings = settings
        self.limits = limits
        self._exit_stack = contextlib.AsyncExitStack()
        self._clients: dict[str, Any] = {}
        self._single_try_client: Any = None
        """An EC2 client without retries, for requests that must not be repeated unless they certainly had no effect."""
        self._library_errors: tuple[type[Exception], ...] = ()

    async def start(self) -> None:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
            from botocore.exceptions import BotoCoreError
            from botocore.parsers import ResponseParserError
        except ImportError as error:
            raise Unavailable('the AWS library is missing: pip install "gpu-dev[server,aws]"') from error
        self._library_errors = (BotoCoreError, ResponseParserError, NotAwsResponse, TimeoutError, OSError)
        session = get_session()
        session.register_component("data_loader", await asyncio.to_thread(_load_service_models))
        for service in _SERVICES:
            self._clients[service] = await self._open_client(session, AioConfig, service, self.limits.attempts)
        self._single_try_client = await self._open_client(session, AioConfig, "ec2", 1)

    async def _open_client(self, session: Any, config: Any, service: str, attempts: int) -> Any:
        client = await self._exit_stack.enter_async_context(
            session.create_client(
                service,
                region_name=self._settings.region,
                config=config(
                    connect_timeout=self.limits.connect_timeout.total_seconds(),
                    read_timeout=self.limits.read_timeout.total_seconds(),
                    retries={"mode": "adaptive", "total_max_attempts": attempts},
                ),
            )
        )
        install_fast_parser(client)
        return client

    async def close(self) -> None:
        self._clients.clear()
        await self._exit_stack.aclose()

    async def call(self, action: Action, parameters: Mapping[str, Any], *, once: bool = False) -> dict[str, Any]:
        """Raises AwsRejected or Unavailable; of the latter AwsThrottled where the call certainly had no effect.
        `once`: without retries."""
        from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError

        client = self._single_try_client if once else self._clients.get(action.service)
        if client is None:
            raise Unavailable("the connection to AWS is not open")
        try:
            # The library's timeouts are between two bytes; without this one a slow response would never end.
            async with asyncio.timeout(self.limits.deadline.total_seconds()):
                response: dict[str, Any] = await getattr(client, action.method)(**parameters)
                return response
        except ClientError as error:
            raise error_from_response(action, error.response) from error
        except ParamValidationError:
            raise  # a bug of ours: AWS was not called, and a retry does not help
        except NoCredentialsError as error:
            raise Unavailable("no AWS credentials found") from error
        except TimeoutError as error:
            raise Unavailable(f"AWS did not answer {action} within {self.limits.deadline}") from error
        except self._library_errors as error:
            raise Unavailable(f"AWS call {action} failed: {error}") from error

    async def list_pages(self, action: Action, key: str, parameters: Mapping[str, Any]) -> AsyncIterator[list[Any]]:
        """The items of every page. When a page raises, the caller must discard all pages before it."""
        sent = dict(parameters)
        tokens: set[str] = set()
        while True:
            try:
                response = await self.call(action, sent)
            except AwsRejected as error:
                if error.is_denied:
                    raise
                raise Unavailable(f"AWS listing {action} is incomplete: {error}") from error
            if key not in response:  # a proxy's page can be well-formed and successful; it is not an empty listing
                raise Unavailable(f"invalid AWS response to {action}: no {key}")
            yield response[key]
            token = response.get("NextToken")
            if not token:
                return
            if token in tokens:
                raise Unavailable(f"AWS listing {action} repeats a page token")
            tokens.add(token)
            sent["NextToken"] = token


@functools.cache
def _load_service_models() -> Any:
    """The library's models of the services. Loading them is slow and CPU-bound, so it happens once."""
    from botocore.loaders import Loader

    loader = Loader()
    for service in _SERVICES:
        loader.load_service_model(service, "service-2")
        loader.load_service_model(service, "endpoint-rule-set-1")
    loader.load_data("endpoints")
    loader.load_data("partitions")
    return loader


# Errors.


_DENIED_CODES = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_RETRYABLE_CODES = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConcurrentSnapshotLimitExceeded",
        "EC2ThrottledException",
        "ExpiredToken",
        "ExpiredTokenException",
        "InsufficientVolumeCapacity",
        "PriorRequestNotComplete",
        "RequestExpired",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "SlowDown",
        "SnapshotCreationPerVolumeRateExceeded",
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
THROTTLED_CODES = _RETRYABLE_CODES - {
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InsufficientVolumeCapacity",
}
"""The request certainly had no effect."""
_MAX_MESSAGE = 400


class AwsRejected(ClusterError):
    """AWS understood the request and rejected it."""

    def __init__(self, action: Action, code: str, message: str) -> None:
        super().__init__(message)
        self.action = action
        self.aws_code = code

    @property
    def is_not_found(self) -> bool:
        """The resource does not exist, or its id is malformed. (Codes for malformed filters and tokens differ.)"""
        return self.aws_code in _NOT_FOUND_CODES

    @property
    def is_denied(self) -> bool:
        return self.aws_code in _DENIED_CODES


_NOT_FOUND_CODES = frozenset(
    {
        "InvalidVolume.NotFound",
        "InvalidVolumeID.Malformed",
        "InvalidSnapshot.NotFound",
        "InvalidSnapshotID.Malformed",
    }
)


class AwsThrottled(Unavailable):
    """AWS throttled the request; it had no effect."""


def error_from_response(action: Action, response: Mapping[str, Any]) -> GpuDevError:
    """`response`: an error response."""
    code = str(response.get("Error", {}).get("Code", ""))
    message = str(response.get("Error", {}).get("Message", ""))[:_MAX_MESSAGE]
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _DENIED_CODES:
        return AwsRejected(action, code, f"AWS denies us {action}: {message} ({code})")
    if code in THROTTLED_CODES:
        return AwsThrottled(f"AWS throttles {action}: {message} ({code})")
    if code in _RETRYABLE_CODES or status >= 500:
        return Unavailable(f"AWS cannot answer {action} now: {message} ({code})")
    return AwsRejected(action, code, f"AWS rejects {action}: {message} ({code})")
