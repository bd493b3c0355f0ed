from support.fixtures.processor import world

__all__ = ["world"]
