from support.fixtures.cli import api, cli, home, lonely_cli
from support.fixtures.sdk import asking, fake

__all__ = ["api", "asking", "cli", "fake", "home", "lonely_cli"]
