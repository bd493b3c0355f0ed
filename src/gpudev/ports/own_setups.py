"""Where people's own set-ups wait for their dev servers. Who starts those may read them; the API may not."""

from typing import Protocol

from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.personalization import OwnSetup


class SetupStore(Protocol):
    async def setup_of(self, reservation_id: ReservationId) -> OwnSetup:
        """An empty one where nothing was brought, or where the reservation is released."""
        ...
