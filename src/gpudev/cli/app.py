"""The root command, and the only place that turns errors into messages and exit codes.

Commands are imported when they are called: `list` must not load the countdown display.
"""

import os
import sys
from collections.abc import Sequence
from itertools import takewhile

import click

from gpudev.cli import COMPLETION_VARIABLE, output, overview
from gpudev.cli.exit_codes import CliError, ExitCode, exit_code_of, write_error
from gpudev.lazy_group import LazyGroup
from gpudev.sdk.errors import ClientError
from gpudev.version import __version__

PROGRAM = "gpu-dev"


class CommandGroup(LazyGroup):
    locations = overview.LOCATIONS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.short_help = overview.SUMMARIES[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        args = [overview.ALIASES.get(args[0], args[0]), *args[1:]]
        name = args[0]
        if name == "help":
            words = takewhile(lambda word: not word.startswith("-"), args[1:])
            return self.resolve_command(ctx, [*words, "--help"])
        # While the shell completes a command line, a message would land in it.
        if name not in overview.LOCATIONS and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No command named {name[:80]!r}{_did_you_mean(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(overview.help_page().rstrip("\n"))


def _did_you_mean(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, [*overview.SUMMARIES, *overview.ALIASES], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name=PROGRAM, message="%(prog)s %(version)s")
def root() -> None:
    """Reserve GPUs, get a shell, keep your files on a disk."""


def invoke(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code. Never raises."""
    output.configure_streams()
    try:
        if COMPLETION_VARIABLE in os.environ:
            root.main([], prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE)
        with root.make_context(PROGRAM, list(arguments)) as context:
            root.invoke(context)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the outermost frame: everything becomes an exit code
        if COMPLETION_VARIABLE in os.environ and isinstance(error, KeyboardInterrupt | click.Abort):
            return ExitCode.INTERRUPTED  # a message would land in the user's command line
        return report_error(error, json_output=_wants_json(arguments))
    return ExitCode.OK


def report_error(error: BaseException, *, json_output: bool) -> int:
    """Print the error; return the exit code."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case SystemExit():
            return error.code if isinstance(error.code, int) else ExitCode.OK
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case click.UsageError() if type(error).__name__ == "NoArgsIsHelpError":
            output.write_note(error.format_message())
            return ExitCode.USAGE
        case _:
            failure = _as_client_error(error)
    if os.environ.get("GPU_DEV_DEBUG"):
        _show_traceback(error)
    write_error(failure, as_json=json_output)
    return exit_code_of(failure)


def _as_client_error(error: BaseException) -> ClientError:
    match error:
        case ClientError():
            return error
        case KeyboardInterrupt() | click.Abort():
            return CliError(ExitCode.INTERRUPTED, "interrupted")
        case click.ClickException():
            context = getattr(error, "ctx", None)
            command = context.command_path if context else PROGRAM
            return CliError(ExitCode.USAGE, error.format_message(), f"See `{command} --help`")
        case OSError():
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            return CliError(ExitCode.LOCAL, f"local error: {what}")
        case _:
            return CliError(
                ExitCode.INTERNAL,
                f"internal error in gpu-dev: {type(error).__name__}: {error}",
                "Please report it with the output of GPU_DEV_DEBUG=1",
            )


def _wants_json(arguments: Sequence[str]) -> bool:
    """Works even if the command line could not be parsed."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def _show_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(error)
