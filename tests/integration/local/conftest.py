from support.fixtures.local import mode, places, world

__all__ = ["mode", "places", "world"]
