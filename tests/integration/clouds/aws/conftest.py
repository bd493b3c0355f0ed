from support.fixtures.aws import cloud, no_long_pauses, stub

__all__ = ["cloud", "no_long_pauses", "stub"]
