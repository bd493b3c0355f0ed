"""What the facts about members and nodes mean: pure."""

from collections.abc import Sequence

from gpudev.adapters.local.machine.gpu_use import UnmanagedUse
from gpudev.adapters.local.machine.nodes import LocalNode
from gpudev.adapters.local.servers.member_process import MemberState
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
    """`preparing`: what is done before members exist."""
    ended = [member for member in members if member.ended is not None]
    if ended:
        reasons = [
            f"member {m.rank}: {m.ended.reason}" if len(members) > 1 else m.ended.reason for m in ended if m.ended
        ]
        unwatched = all(member.ended is not None and not member.ended.watched for member in ended)
        run_end = next((member.command_exit for member in ended if member.command_exit is not None), None)
        return ServerState(
            reservation_id, ServerPhase.DEAD, reason="\n".join(reasons), is_restartable=unwatched, command_exit=run_end
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
