from support.fixtures.api import ada, address, api, bob, world

__all__ = ["ada", "address", "api", "bob", "world"]
