"""A dev server of this machine as a control plane knows it, and what it is taken for by that. It asks nobody."""

from dataclasses import dataclass, field

from gpudev.adapters.local.machine.launch_spec import LOGIN
from gpudev.adapters.local.records import ServerRecord
from gpudev.adapters.local.servers.member_process import Member
from gpudev.adapters.local.servers.observation import server_state
from gpudev.adapters.local.servers.state_folder import ServerFolder
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.cluster import ServerPhase, ServerState


@dataclass
class KnownServer:
    reservation_id: ReservationId
    folder: ServerFolder
    record: ServerRecord | None = None
    host_key: str = ""
    members: list[Member] = field(default_factory=list)
    preparation_step: str | None = None
    failure: str | None = None
    is_restartable: bool = False
    """Broken in a way that starting it again may mend: nobody watched, or the start itself failed."""

    def state(self, ssh_host: str) -> ServerState:
        connection = None
        if self.record is not None and self.record.ports:
            connection = SshEndpoint(self.record.host or ssh_host, self.record.ports[0], LOGIN, self.host_key)
        facts = [member.state for member in self.members]
        if self.failure is not None:
            return ServerState(
                self.reservation_id, ServerPhase.DEAD, reason=self.failure, is_restartable=self.is_restartable
            )
        return server_state(self.reservation_id, facts, connection, self.preparation_step)
