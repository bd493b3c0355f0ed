"""`gpu-dev completion`."""

import click
from click.shell_completion import get_completion_class

from gpudev.cli import output
from gpudev.cli.main import COMPLETION_VARIABLE


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash:  echo 'eval "$(gpu-dev completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(gpu-dev completion zsh)"' >> ~/.zshrc
    fish:  gpu-dev completion fish > ~/.config/fish/completions/gpu-dev.fish
    """
    root = context.find_root()
    kind = get_completion_class(shell)
    assert kind is not None, "every shell that can be chosen has one"
    output.write_line(kind(root.command, {}, str(root.info_name), COMPLETION_VARIABLE).source())
