from support.fixtures.disk_store import postgres_world

__all__ = ["postgres_world"]
