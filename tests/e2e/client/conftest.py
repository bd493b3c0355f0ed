from support.fixtures.sdk import client, system

__all__ = ["client", "system"]
