"""The API as its own tests have it: attacks need no other world."""

from api.conftest import address, api, world

__all__ = ["address", "api", "world"]
