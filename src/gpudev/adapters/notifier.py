"""Notifications through apprise: webhooks, Slack, mail and many others, by operators' URLs.

A URL is a secret, because it contains tokens and passwords. It never leaves this module: targets are named by its
digest, and logs by its kind and host. `{email}` and `{username}` in a URL stand for the reservation's owner, and are
quoted: no user name can change the host or the request. Owners cannot set URLs.
"""

import asyncio
import hashlib
import logging
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit

import structlog

from gpudev.domain.errors import Unavailable
from gpudev.domain.notifications import Notification, NotificationKind, Recipient

log = structlog.get_logger(__name__)

_DIGEST_LENGTH = 8
"""Too short to recover a password from, long enough to distinguish a few URLs."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")
_STATUS = re.compile(r"error=(\d{3})\b")
_NOTIFY_TYPES = {
    NotificationKind.READY: "success",
    NotificationKind.WARNING: "warning",
    NotificationKind.FAILED: "failure",
    NotificationKind.ENDED: "info",
}


class AppriseNotifier:
    def __init__(self, urls: Sequence[str]) -> None:
        """Raises ImportError where apprise is not installed. A URL that it does not support is logged and left out.
        Takes a second or more, because the library loads all its plugins: best run in a thread."""
        import apprise

        self._apprise = apprise
        self._asset = apprise.AppriseAsset(
            app_id="gpu-dev",
            app_desc="GPU dev servers",
            app_url="",
            storage_mode=apprise.PersistentStoreMode.MEMORY,
            http_redirects=0,
        )
        for name in ("apprise", "urllib3"):  # they log URLs; `_StatusCapture` keeps the part that matters
            logging.getLogger(name).setLevel(logging.WARNING)
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self._urls: dict[str, str] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from imports of its plugins, which we cannot fix
            for number, url in enumerate(urls, 1):
                if self._plugin(_fill_recipient(url, Recipient("nobody", "nobody@example.com"))) is None:
                    log.error("notifications.invalid_url", number=number, kind=_url_kind(url))
                else:
                    self._urls[hashlib.sha256(url.encode()).hexdigest()[:_DIGEST_LENGTH]] = url
        self._target_locks = {target: asyncio.Lock() for target in self._urls}
        self._threads = ThreadPoolExecutor(max_workers=max(1, len(self._urls)), thread_name_prefix="notify")

    @property
    def targets(self) -> Mapping[str, str]:
        return MappingProxyType({target: _describe_url(url) for target, url in self._urls.items()})

    def can_reach(self, target: str, recipient: Recipient) -> bool:
        return recipient.email is not None or "{email}" not in self._urls.get(target, "")

    async def send(self, target: str, notification: Notification, recipient: Recipient) -> None:
        url = self._urls.get(target)
        if url is None:
            raise Unavailable("the target is no longer configured")
        # One at a time per target: the library keeps the rate limits of the service.
        async with self._target_locks[target]:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._send, _fill_recipient(url, recipient), notification)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, url: str, notification: Notification) -> None:
        capture = _StatusCapture()
        logger = logging.getLogger("apprise")
        logger.addHandler(capture)
        try:
            plugin = self._plugin(url)
            is_sent = plugin is not None and plugin.notify(
                title=notification.title,
                body=notification.text,
                notify_type=_NOTIFY_TYPES[notification.kind],
                body_format=self._apprise.NotifyFormat.TEXT,
            )
        except Exception as error:  # noqa: BLE001 - plugins raise any exception, and its text may contain the URL
            raise Unavailable(f"not delivered ({type(error).__name__})") from None
        finally:
            logger.removeHandler(capture)
        if not is_sent:
            raise Unavailable(f"not delivered{capture.description}")

    def _plugin(self, url: str) -> Any:
        return self._apprise.Apprise.instantiate(url, asset=self._asset)


class _StatusCapture(logging.Handler):
    """Keeps the HTTP status of a failure from the library's log. The rest of that log may contain secrets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.description = ""
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        found = _STATUS.search(record.getMessage())
        if found is not None and record.thread == self._thread:
            self.description = f" (status {found[1]})"


def _fill_recipient(url: str, recipient: Recipient) -> str:
    email, name = quote(recipient.email or "", safe=""), quote(recipient.username, safe="")
    return url.replace("{email}", email).replace("{username}", name)


def _url_kind(url: str) -> str:
    found = _SCHEME.match(url)
    return found[1].lower() if found is not None else "?"


def _describe_url(url: str) -> str:
    """Its kind, and the host for kinds that have one; others have a token in place of the host."""
    kind = _url_kind(url)
    if not kind.startswith(("json", "xml", "form", "mailto")):
        return kind
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    return f"{kind} to {host}" if host else kind
