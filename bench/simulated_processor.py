"""`python -m bench.simulated_processor NODES`: a real processor over a simulated cluster."""

import asyncio
import sys

from gpudev import settings
from gpudev.adapters.postgres.database.listener import Listener
from gpudev.adapters.postgres.database.migrator import ensure_queue_notifications
from gpudev.adapters.postgres.queue.message_queue import QUEUE_INSERT_CHANNEL
from gpudev.adapters.postgres.stores import open_stores
from gpudev.bootstrap.processor import make_processor
from gpudev.bootstrap.service_runtime import configure_logging
from gpudev.domain.cluster import Node
from gpudev.domain.reservations.reservation import SshEndpoint
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase, ServerState
from support.paper_cluster import PaperCluster


async def main(node_count: int) -> None:
    chosen = settings.load_settings()
    configure_logging(chosen)
    stores = open_stores(chosen)
    clock = SystemClock()
    cluster = PaperCluster([Node(f"node-{n:03}", "h100", 8) for n in range(node_count)], clock)
    for reservation in await stores.reservations.unreleased():
        if reservation.shares:
            way_in = reservation.connection or SshEndpoint("127.0.0.1", 22, "dev", "ssh-ed25519 AAAA")
            cluster.servers[reservation.reservation_id] = ServerState(
                reservation.reservation_id, ServerPhase.READY, connection=way_in
            )
    processor = make_processor(stores, cluster, clock, chosen.timing)
    listener = Listener(
        chosen.database,
        QUEUE_INSERT_CHANNEL,
        on_payload=lambda _: processor.wake(),
        on_connect=ensure_queue_notifications,
    )
    listener.start()
    await processor.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
