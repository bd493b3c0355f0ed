"""People's own set-ups on PostgreSQL: written with the submit, read by who starts the dev server, gone at the release.

The API's role may write and remove them and not read them, so that nothing it answers can hold one.
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


async def insert_personalization(connection: Connection, reservation_id: ReservationId, setup: Personalization) -> None:
    """Inside the transaction of the submit."""
    await connection.execute(
        """
        INSERT INTO reservation_setups (reservation_id, environment, dotfiles, startup_script)
        VALUES ($1, $2::jsonb, $3, $4)
        """,
        reservation_id,
        dict(setup.environment),
        setup.dotfiles,
        setup.startup_script,
    )


async def delete_personalizations(connection: Connection, ids: Sequence[ReservationId]) -> None:
    """But for those that are being moved, which take them along."""
    await connection.execute(
        """
        DELETE FROM reservation_setups s WHERE s.reservation_id = ANY($1::uuid[])
        AND NOT EXISTS (SELECT FROM reservation_moves m WHERE m.reservation_id = s.reservation_id AND NOT m.done)
        """,
        list(ids),
    )
