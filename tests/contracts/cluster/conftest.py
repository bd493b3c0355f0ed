from support.fixtures.local import mode, places

__all__ = ["mode", "places"]
