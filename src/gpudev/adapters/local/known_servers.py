"""A dev server of this machine as a control plane knows it, and what it is taken for by that. It asks nobody."""

from dataclasses import dataclass, field

from gpudev.adapters.local.machine.launch_spec import LOGIN
from gpudev.adapters.local.records import Record
from gpudev.adapters.local.servers.member_process import Member
from gpudev.adapters.local.servers.observation import server_seen
from gpudev.adapters.local.servers.state_folder import ServerFolder
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Connection
from gpudev.ports.cluster import Phase, ServerSeen


@dataclass
class KnownServer:
    reservation_id: ReservationId
    folder: ServerFolder
    record: Record | None = None
    host_key: str = ""
    members: list[Member] = field(default_factory=list)
    preparing: str | None = None
    broken: str | None = None
    lost: bool = False
    """Broken in a way that starting it again may mend: nobody watched, or the start itself failed."""

    def seen(self, ssh_host: str) -> ServerSeen:
        connection = None
        if self.record is not None and self.record.ports:
            connection = Connection(self.record.host or ssh_host, self.record.ports[0], LOGIN, self.host_key)
        facts = [member.facts for member in self.members]
        if self.broken is not None:
            return ServerSeen(self.reservation_id, Phase.DEAD, reason=self.broken, lost_unwatched=self.lost)
        return server_seen(self.reservation_id, facts, connection, self.preparing)
