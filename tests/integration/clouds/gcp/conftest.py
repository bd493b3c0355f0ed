from support.fixtures.gcp import cloud, stub

__all__ = ["cloud", "stub"]
