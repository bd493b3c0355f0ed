from support.fixtures.api import ada, api, bob, world
from support.fixtures.processor import world as processor_world
from support.fixtures.reconciler import cloud
from support.fixtures.reconciler import world as reconciler_world

__all__ = ["ada", "api", "bob", "cloud", "processor_world", "reconciler_world", "world"]
