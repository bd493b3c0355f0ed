from support.fixtures.api import ada, api, bob, world
from support.fixtures.disk_store import postgres_world
from support.fixtures.processor import stays
from support.fixtures.reconciler import cloud, reconciling, records
from support.fixtures.reconciler import world as reconciler_world

__all__ = [
    "ada",
    "api",
    "bob",
    "cloud",
    "postgres_world",
    "reconciler_world",
    "reconciling",
    "records",
    "stays",
    "world",
]
