from support.fixtures.api import ada, api, bob, proxy, world

__all__ = ["ada", "api", "bob", "proxy", "world"]
