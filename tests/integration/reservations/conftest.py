from support.fixtures.processor import stays, world
from support.fixtures.reconciler import world as reconciler_world

__all__ = ["reconciler_world", "stays", "world"]
