"""Builds the notification sender, if the settings name targets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from gpudev.adapters.notifier import AppriseNotifier
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.notifications import Notification, NotificationKind, Recipient
from gpudev.ports.clock import SystemClock
from gpudev.ports.notifications import Notifier
from gpudev.processor.notifications import NotificationSender
from gpudev.settings import NotifySettings

log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def run_notifications(
    settings: NotifySettings, stores: Stores, is_planning: Callable[[], bool]
) -> AsyncIterator[None]:
    """Runs in the background. Errors are logged and affect nothing else."""
    task = asyncio.create_task(_deliver(settings, stores, is_planning), name="notifications")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _deliver(settings: NotifySettings, stores: Stores, is_planning: Callable[[], bool]) -> None:
    notifier = await asyncio.to_thread(open_notifier, settings)
    try:
        kinds = [NotificationKind(name) for name in settings.on]
        await NotificationSender(stores.notifications, notifier, SystemClock(), kinds).run(is_planning)
    finally:
        await notifier.close()


def _read_urls(settings: NotifySettings) -> tuple[str, ...]:
    if not settings.urls_file:
        return settings.secret_urls
    try:
        return settings.secret_urls + tuple(Path(settings.urls_file).expanduser().read_text().split())
    except (OSError, UnicodeDecodeError) as error:
        log.error("notifications.file_unreadable", path=settings.urls_file, error=type(error).__name__)
        return settings.secret_urls


def open_notifier(settings: NotifySettings) -> Notifier:
    urls = _read_urls(settings)
    if not urls:
        return NullNotifier()
    try:
        notifier = AppriseNotifier(urls)
    except ImportError:
        log.error("notifications.disabled", reason="apprise is not installed: pip install 'gpu-dev[notify]'")
        return NullNotifier()
    log.info("notifications.enabled", targets=sorted(notifier.targets.values()))
    return notifier


class NullNotifier:
    """No targets are configured."""

    targets: dict[str, str] = {}  # noqa: RUF012 - always empty

    def can_reach(self, target: str, recipient: Recipient) -> bool:
        return False

    async def send(self, target: str, notification: Notification, recipient: Recipient) -> None:
        return None

    async def close(self) -> None:
        return None
