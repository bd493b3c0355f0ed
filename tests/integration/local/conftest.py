from support.fixtures.local import mode, places, world
from support.fixtures.own_networks import namespaces_allowed, networks, outside, own, program, state_dir

__all__ = [
    "mode",
    "namespaces_allowed",
    "networks",
    "outside",
    "own",
    "places",
    "program",
    "state_dir",
    "world",
]
