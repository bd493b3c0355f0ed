from support.fixtures.jupyter import place, place_settings

__all__ = ["place", "place_settings"]
