"""One call to AWS: signed, retried, bounded in time, and its errors in our words. And whole listings, page by page.

Retries are the AWS library's, in its adaptive mode: it slows down by itself when it is turned away for too many
requests. It knows nothing of what is called.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpudev.adapters.aws.errors import AwsRejected, error_from_response
from gpudev.adapters.aws.parsing import NotAwsResponse, install_fast_parser
from gpudev.adapters.aws.permissions import Action
from gpudev.domain.errors import Unavailable
from gpudev.settings import AwsSettings

_SERVICES = ("ec2", "autoscaling")


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long AWS is waited for, and how often it is asked. Not a setting: these fit EC2 wherever it is used."""

    connect_timeout: timedelta = timedelta(seconds=5)
    read_timeout: timedelta = timedelta(seconds=30)
    """How long an answer may pause."""
    deadline: timedelta = timedelta(seconds=120)
    """Of one call (a page of a listing) with all its attempts."""
    attempts: int = 6
    """Of one call; the pauses between are the AWS library's."""
    settle_time: timedelta = timedelta(seconds=30)
    """For how long AWS may not show yet what we just created: it is eventually consistent."""

    @property
    def appears_within(self) -> timedelta:
        """From when something is begun until AWS is certain to show it."""
        return self.deadline + self.settle_time


CALL_LIMITS = CallLimits()


class AwsClient:
    def __init__(self, settings: AwsSettings, limits: CallLimits = CALL_LIMITS) -> None:
        self._settings = settings
        self.limits = limits
        self._exit_stack = contextlib.AsyncExitStack()
        self._clients: dict[str, Any] = {}
        self._single_try_client: Any = None
        """A client of EC2 that tries once: for what must not be sent again unless it certainly had no effect."""
        self._library_errors: tuple[type[Exception], ...] = ()

    async def start(self) -> None:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
            from botocore.exceptions import BotoCoreError
            from botocore.parsers import ResponseParserError
        except ImportError as error:
            raise Unavailable('AWS needs its library: pip install "gpu-dev[server,aws]"') from error
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
        """Raises Refusal and Unavailable; NotNow where it certainly had no effect."""
        from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError

        client = self._single_try_client if once else self._clients.get(action.service)
        if client is None:
            raise Unavailable("the connection to AWS is not open")
        try:
            # The library's time-outs are between two bytes; an answer that trickles would never end.
            async with asyncio.timeout(self.limits.deadline.total_seconds()):
                answer: dict[str, Any] = await getattr(client, action.method)(**parameters)
                return answer
        except ClientError as error:
            raise error_from_response(action, error.response) from error
        except ParamValidationError:
            raise  # our own mistake: no answer of AWS, and asking again helps nobody
        except NoCredentialsError as error:
            raise Unavailable("there are no AWS credentials here") from error
        except TimeoutError as error:
            raise Unavailable(f"AWS did not answer {action} in {self.limits.deadline}") from error
        except self._library_errors as error:
            raise Unavailable(f"AWS could not be asked {action}: {error}") from error

    async def list_pages(self, action: Action, key: str, parameters: Mapping[str, Any]) -> AsyncIterator[list[Any]]:
        """All pages, each as its items. Whoever takes them must keep nothing when one raises."""
        asked = dict(parameters)
        tokens: set[str] = set()
        while True:
            try:
                answer = await self.call(action, asked)
            except AwsRejected as refusal:
                if refusal.is_denied:
                    raise
                raise Unavailable(f"the listing by {action} broke off: {refusal}") from refusal
            if key not in answer:  # a proxy's page, well-formed and a success, is no empty listing
                raise Unavailable(f"what answered {action} was not AWS: it names no {key}")
            yield answer[key]
            token = answer.get("NextToken")
            if not token:
                return
            if token in tokens:
                raise Unavailable(f"the listing by {action} goes round in circles")
            tokens.add(token)
            asked["NextToken"] = token


@functools.cache
def _load_service_models() -> Any:
    """What the library knows of the services. Reading it takes a good while of nothing but work: once is enough."""
    from botocore.loaders import Loader

    loader = Loader()
    for service in _SERVICES:
        loader.load_service_model(service, "service-2")
        loader.load_service_model(service, "endpoint-rule-set-1")
    loader.load_data("endpoints")
    loader.load_data("partitions")
    return loader
