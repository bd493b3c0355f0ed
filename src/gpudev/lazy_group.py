"""A click group that imports each command when it is called, so that no command loads what others need."""

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click


class LazyGroup(click.Group):
    locations: ClassVar[Mapping[str, str]]
    """Command name → `package.module:attribute`, in the order of the help page."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.locations)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        location = self.locations.get(cmd_name)
        if location is None:
            return None
        module, _, attribute = location.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
