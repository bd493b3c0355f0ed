"""A cluster on paper: nodes and dev servers that exist as records only, with faults on demand.

For what the processor must do when a cluster is slow, refuses, lies low or loses things, which a real one does not
do when asked to. It passes the same contract suite as the real ones.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from gpudev.domain.cluster import Node
from gpudev.domain.disks.contents import Contents
from gpudev.domain.errors import GpuDevError, Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.domain.sessions.addons import JupyterSpec, JupyterState, JupyterStatus
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import ClusterState, ServerPhase, ServerSpec, ServerState


class PaperCluster:
    isolation = "none: these dev servers exist on paper"

    def __init__(self, nodes: Sequence[Node], clock: Clock) -> None:
        self.nodes = tuple(nodes)
        self.servers: dict[ReservationId, ServerState] = {}
        self.specs: dict[ReservationId, ServerSpec] = {}
        self.told: list[tuple[ReservationId, str]] = []
        self.asked = 0
        self.put_aside: list[ReservationId] = []
        self.launches = 0
        self.ready_at_once = True
        self.refuse_launch: GpuDevError | None = None
        self.refuse_adjust: Exception | None = None
        self.keys: dict[ReservationId, tuple[str, ...]] = {}
        self.jupyters: dict[ReservationId, JupyterSpec] = {}
        self.jupyter_is = JupyterStatus(JupyterState.READY)
        self.refuse_look: GpuDevError | None = None
        self.slow_to_go = False
        self.homes: dict[ReservationId, Contents] = {}
        """What is in them, as the dev servers would say."""
        self._clock = clock
        self._changed = asyncio.Event()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def observe(self) -> ClusterState:
        if self.refuse_look is not None:
            raise self.refuse_look
        return ClusterState(self._clock.now(), self.nodes, dict(self.servers))

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield

    async def ensure_server(self, spec: ServerSpec) -> None:
        self.asked += 1
        if self.refuse_launch is not None:
            raise self.refuse_launch
        seen = self.servers.get(spec.reservation_id)
        if seen is not None and seen.phase is not ServerPhase.DEAD:
            return
        self.launches += 1
        self.specs[spec.reservation_id] = spec
        self.keys[spec.reservation_id] = spec.ssh_public_keys
        self.servers[spec.reservation_id] = ServerState(
            spec.reservation_id, ServerPhase.STARTING, step="starting on paper"
        )
        if self.ready_at_once:
            self.make_ready(spec.reservation_id)
        self._changed.set()

    def make_ready(self, reservation_id: ReservationId) -> None:
        port = 20000 + len(self.specs)
        connection = SshEndpoint("127.0.0.1", port, "dev", "ssh-ed25519 AAAA")
        self.servers[reservation_id] = ServerState(reservation_id, ServerPhase.READY, connection=connection)
        self._changed.set()

    def kill(self, reservation_id: ReservationId, *, unwatched: bool = False) -> None:
        self.servers[reservation_id] = ServerState(
            reservation_id, ServerPhase.DEAD, reason="killed by signal 9", is_restartable=unwatched
        )
        self._changed.set()

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        if self.slow_to_go:
            return False
        if self.servers.pop(reservation_id, None) is not None and keep_files:
            self.put_aside.append(reservation_id)
        self._changed.set()
        return True

    async def home_contents(self, reservation_id: ReservationId) -> Contents | None:
        seen = self.servers.get(reservation_id)
        return None if seen is None or seen.phase is ServerPhase.DEAD else self.homes.get(reservation_id)

    async def apply_addons(
        self, reservation_id: ReservationId, ssh_public_keys: tuple[str, ...], jupyter: JupyterSpec | None
    ) -> JupyterStatus | None:
        seen = self.servers.get(reservation_id)
        if seen is None or seen.phase is not ServerPhase.READY:
            raise Unavailable("there is no dev server")
        if self.refuse_adjust is not None:
            raise self.refuse_adjust
        self.keys[reservation_id] = ssh_public_keys
        if jupyter is None:
            self.jupyters.pop(reservation_id, None)
            return None
        self.jupyters[reservation_id] = jupyter
        return self.jupyter_is

    async def send_message(self, reservation_id: ReservationId, message: str) -> None:
        self.told.append((reservation_id, message))
