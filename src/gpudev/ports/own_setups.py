"""Where people's own set-ups wait for their dev servers. Who starts those may read them; the API may not."""

from typing import Protocol

from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.personalization import Personalization


class PersonalizationStore(Protocol):
    async def load_personalization(self, reservation_id: ReservationId) -> Personalization:
        """An empty one where nothing was brought, or where the reservation is released."""
        ...
