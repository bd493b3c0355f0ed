"""States of dev servers and nodes, derived from members and GPU use. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpudev.adapters.local.machine.gpu_use import UnmanagedUse
from gpudev.adapters.local.machine.launch_spec import LOGIN
from gpudev.adapters.local.machine.nodes import LocalNode
from gpudev.adapters.local.servers.member_process import Member, MemberState
from gpudev.adapters.local.servers.state_folder import ServerFolder, ServerRecord
from gpudev.domain.cluster import Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.cluster import ServerPhase, ServerState


def server_state(
    reservation_id: ReservationId,
    members: Sequence[MemberState],
    connection: SshEndpoint | None,
    preparing: str | None = None,
) -> ServerState:
    """`preparing`: the step of the preparation, before members exist. None: it is over."""
    ended = [member for member in members if member.ended is not None]
    if ended:
        reasons = [
            f"member {m.rank}: {m.ended.reason}" if len(members) > 1 else m.ended.reason for m in ended if m.ended
        ]
        unwatched = all(member.ended is not None and not member.ended.watched for member in ended)
        command_exit = next((member.command_exit for member in ended if member.command_exit is not None), None)
        return ServerState(
            reservation_id,
            ServerPhase.DEAD,
            reason="\n".join(reasons),
            is_restartable=unwatched,
            command_exit=command_exit,
        )
    if preparing is not None:
        return ServerState(reservation_id, ServerPhase.STARTING, step=preparing)
    if not members:
        return ServerState(reservation_id, ServerPhase.STARTING, step="being prepared")
    waiting = next((member for member in members if not member.ready), None)
    if waiting is not None:
        return ServerState(reservation_id, ServerPhase.STARTING, step=waiting.step)
    setup = next((member.personalization for member in members if member.rank == 0), None)
    return ServerState(reservation_id, ServerPhase.READY, connection=connection, setup_outcome=setup)


def node_state(node: LocalNode, unmanaged: UnmanagedUse, address: str) -> Node:
    indices = unmanaged.indices.get(node.name, frozenset())
    return Node(
        name=node.name,
        gpu_type=node.gpu_type,
        units=node.units,
        # A driver that does not answer offers nothing; a simulated or CPU node does not need one.
        ready=unmanaged.driver_answers or not node.nvml,
        foreign_units=len(indices),
        foreign_indices=indices,
        simulated=node.simulated,
        address=address,
    )


@dataclass
class KnownServer:
    """A dev server of this machine, as the control plane knows it. It does no I/O."""

    reservation_id: ReservationId
    folder: ServerFolder
    record: ServerRecord | None = None
    host_key: str = ""
    members: list[Member] = field(default_factory=list)
    preparation_step: str | None = None
    failure: str | None = None
    is_restartable: bool = False
    """A new launch may repair it: it ended while no control plane watched, or its launch failed."""

    def state(self, ssh_host: str) -> ServerState:
        connection = None
        if self.record is not None and self.record.ports:
            connection = SshEndpoint(self.record.host or ssh_host, self.record.ports[0], LOGIN, self.host_key)
        members = [member.state for member in self.members]
        if self.failure is not None:
            return ServerState(
                self.reservation_id, ServerPhase.DEAD, reason=self.failure, is_restartable=self.is_restartable
            )
        return server_state(self.reservation_id, members, connection, self.preparation_step)
