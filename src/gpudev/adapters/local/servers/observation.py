"""What the facts about members and nodes mean: pure."""

from collections.abc import Sequence

from gpudev.adapters.local.machine.gpu_use import ForeignUse
from gpudev.adapters.local.machine.nodes import LocalNode
from gpudev.adapters.local.servers.member_process import MemberFacts
from gpudev.domain.cluster import Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Connection
from gpudev.ports.cluster import Phase, ServerSeen


def server_seen(
    reservation_id: ReservationId,
    members: Sequence[MemberFacts],
    connection: Connection | None,
    preparing: str | None = None,
) -> ServerSeen:
    """`preparing`: what is done before members exist."""
    ended = [member for member in members if member.ended is not None]
    if ended:
        reasons = [
            f"member {m.rank}: {m.ended.reason}" if len(members) > 1 else m.ended.reason for m in ended if m.ended
        ]
        unwatched = all(member.ended is not None and not member.ended.watched for member in ended)
        run_end = next((member.run_end for member in ended if member.run_end is not None), None)
        return ServerSeen(
            reservation_id, Phase.DEAD, reason="\n".join(reasons), lost_unwatched=unwatched, run_end=run_end
        )
    if preparing is not None:
        return ServerSeen(reservation_id, Phase.STARTING, step=preparing)
    if not members:
        return ServerSeen(reservation_id, Phase.STARTING, step="being prepared")
    waiting = next((member for member in members if not member.ready), None)
    if waiting is not None:
        return ServerSeen(reservation_id, Phase.STARTING, step=waiting.step)
    setup = next((member.setup for member in members if member.rank == 0), None)
    return ServerSeen(reservation_id, Phase.READY, connection=connection, setup=setup)


def node_seen(node: LocalNode, foreign: ForeignUse, address: str) -> Node:
    indices = foreign.indices.get(node.name, frozenset())
    return Node(
        name=node.name,
        gpu_type=node.gpu_type,
        units=node.units,
        # A driver that does not answer offers nothing; a simulated or CPU node does not need one.
        ready=foreign.driver_answers or not node.nvml,
        foreign_units=len(indices),
        foreign_indices=indices,
        simulated=node.simulated,
        address=address,
    )
