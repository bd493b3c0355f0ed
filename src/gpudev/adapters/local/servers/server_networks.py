"""The network of dev servers: one of its own for each where that works, else the host's.

It opens the networks, keeps their rules, and says which it is. `adapters.local.network` does the work, in threads.
"""

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from gpudev.adapters.atomic_write import write_atomically
from gpudev.adapters.local.network.dns_relay import DnsRelay
from gpudev.adapters.local.network.own_networks import (
    NetworksUnavailable,
    OwnNetwork,
    OwnNetworks,
    open_own_networks,
    remove_own_networks,
)
from gpudev.adapters.local.network.plan import NetworkId, NetworkSetting
from gpudev.domain.errors import Unavailable

log = structlog.get_logger(__name__)
_REPORT_FILE = "network.json"
_LOCK_FILE = "network.lock"
_CHECK_RULES_EVERY_S = 30.0
_OWN_NETWORK = "each has its own network, from which neither this machine nor another dev server can be reached"
_SHARED_NETWORK = "the network is shared"


class ServerNetworks:
    def __init__(self, state_dir: Path, setting: NetworkSetting | None, chosen_range: str = "") -> None:
        """`setting` None: no dev server is started, and whoever starts some reports on the network."""
        self._state_dir = state_dir
        self._setting = setting
        self._range = chosen_range
        self._problem: str | None = None
        self._lock: int | None = None
        self._is_alone = False
        self._checking: asyncio.Task[None] | None = None
        self._relay: DnsRelay | None = None
        self.own: OwnNetworks | None = None

    @property
    def description(self) -> str:
        """A part of a sentence for people."""
        if self.own is not None:
            return _OWN_NETWORK
        return _SHARED_NETWORK if self._problem is None else f"{_SHARED_NETWORK} ({self._problem})"

    async def open(self) -> None:
        """Raises Unavailable when the setting demands own networks and they do not work."""
        if self._setting in (None, NetworkSetting.SHARED):
            return
        try:
            self.own = await asyncio.to_thread(open_own_networks, self._state_dir, self._range)
        except NetworksUnavailable as error:
            self._problem = str(error)
            if self._setting is NetworkSetting.OWN:
                raise Unavailable(f"dev servers cannot have networks of their own: {error}") from error

    async def abandon(self) -> None:
        """Use the host's network after all."""
        own, self.own = self.own, None
        if own is not None:
            await asyncio.to_thread(own.close)
            await asyncio.to_thread(remove_own_networks, self._state_dir)

    async def start(self, used: tuple[int, ...]) -> None:
        """`used`: the numbers of the networks that dev servers have."""
        if self._setting is not None:
            await asyncio.to_thread(self._write_report)
        if self.own is None:
            return
        self.own.hold(used)
        await asyncio.to_thread(self._take_lock)
        if self._is_alone:
            await asyncio.to_thread(self.own.remove_others, used)
        if self.own.name_servers.relay_to:
            self._start_relay(self.own, used)
        self.own.refill()
        self._checking = asyncio.create_task(self._keep_rules(self.own))

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._checking
        if self.own is not None:
            await asyncio.to_thread(self.own.close)
        if self._relay is not None:
            await self._relay.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self, network_id: NetworkId) -> None:
        """Blocks. The kernel does it, too, but later."""
        if self.own is not None:
            self.own.remove(network_id)

    def _start_relay(self, own: OwnNetworks, used: Iterable[int]) -> None:
        relay = self._relay = DnsRelay(own.name_servers.relay_to)
        for number in used:
            relay.add(own.plan.addresses(number).gateway)
        loop = asyncio.get_running_loop()

        def serve(network: OwnNetwork) -> None:
            loop.call_soon_threadsafe(relay.add, network.gateway)

        own.when_created = serve

    async def _keep_rules(self, own: OwnNetworks) -> None:
        """Somebody who reloads the machine's firewall may remove our rules, too; and routes come and go."""
        while True:
            await asyncio.sleep(_CHECK_RULES_EVERY_S)
            try:
                if await asyncio.to_thread(own.ensure_rules):
                    log.warning("network.rules_applied")
            except OSError as error:
                log.warning("network.rules_missing", error=error.strerror or str(error))
            except Exception:
                log.exception("network.rules_unknown")  # the next round may find out

    def _take_lock(self) -> None:
        """Shared by all processes that use these networks. Whoever is alone may remove what is left of others."""
        self._lock = os.open(self._state_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._is_alone = True
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _write_report(self) -> None:
        write_atomically(self._state_dir / _REPORT_FILE, json.dumps({"description": self.description}))


def read_network_description(state_dir: Path) -> str:
    """The description that the running system has written."""
    try:
        return str(json.loads((state_dir / _REPORT_FILE).read_text())["description"])
    except (OSError, ValueError, KeyError, TypeError):
        return _SHARED_NETWORK
