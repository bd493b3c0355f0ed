"""Personalization on PostgreSQL: written at submit, read at launch, deleted at release.

The API's role may write and delete it but not read it, so that no response of the API can contain it.
"""

from collections.abc import Sequence

from gpudev.adapters.postgres.database.pool import Connection, Pool
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.personalization import NO_PERSONALIZATION, Personalization


class PostgresPersonalizations:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def load_personalization(self, reservation_id: ReservationId) -> Personalization:
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                "SELECT environment, dotfiles, startup_script FROM reservation_setups WHERE reservation_id = $1",
                reservation_id,
            )
        return (
            NO_PERSONALIZATION
            if row is None
            else Personalization(row["environment"], row["dotfiles"], row["startup_script"])
        )


async def insert_personalization(
    connection: Connection, reservation_id: ReservationId, personalization: Personalization
) -> None:
    """Runs in the submit's transaction."""
    await connection.execute(
        """
        INSERT INTO reservation_setups (reservation_id, environment, dotfiles, startup_script)
        VALUES ($1, $2::jsonb, $3, $4)
        """,
        reservation_id,
        dict(personalization.environment),
        personalization.dotfiles,
        personalization.startup_script,
    )


async def delete_personalizations(connection: Connection, ids: Sequence[ReservationId]) -> None:
    """Delete all but those of reservations that are being moved: the moved reservation gets them."""
    await connection.execute(
        """
        DELETE FROM reservation_setups s WHERE s.reservation_id = ANY($1::uuid[])
        AND NOT EXISTS (SELECT FROM reservation_moves m WHERE m.reservation_id = s.reservation_id AND NOT m.done)
        """,
        list(ids),
    )
