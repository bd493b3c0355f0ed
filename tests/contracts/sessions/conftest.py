from support.fixtures.local import places

__all__ = ["places"]
