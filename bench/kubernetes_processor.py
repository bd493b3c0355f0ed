"""`python -m bench.kubernetes_processor`: a real processor over the Kubernetes cluster that the environment names."""

import asyncio

from gpudev import settings
from gpudev.adapters.kubernetes.cluster import KubernetesCluster
from gpudev.adapters.postgres.database.listener import Listener
from gpudev.adapters.postgres.database.migrator import ensure_queue_notifications
from gpudev.adapters.postgres.queue.message_queue import QUEUE_INSERT_CHANNEL
from gpudev.adapters.postgres.stores import open_stores
from gpudev.bootstrap.processor import make_processor
from gpudev.bootstrap.service_runtime import configure_logging, tune_garbage_collector
from gpudev.domain.cluster import load_catalogue
from gpudev.ports.clock import SystemClock


async def main() -> None:
    chosen = settings.load_settings()
    configure_logging(chosen)
    stores = open_stores(chosen)
    clock = SystemClock()
    cluster = KubernetesCluster(chosen.kubernetes, load_catalogue(), clock)
    await cluster.start()
    processor = make_processor(stores, cluster, clock, chosen.timing)
    listener = Listener(
        chosen.database,
        QUEUE_INSERT_CHANNEL,
        on_payload=lambda _: processor.wake(),
        on_connect=ensure_queue_notifications,
    )
    listener.start()
    tune_garbage_collector()  # as the command does
    await processor.run()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
