"""Commands that run on a dev server from a folder there, and those that go on when nobody is connected any more.

All of it is data for fixed scripts: what a person typed arrives as arguments and is never part of a script's text. A
run that was let go keeps three files in ~/.gpu-dev-run: its output, its process and, once it has ended, its exit code.
"""

from collections.abc import Sequence

NOTHING_RAN = 4
_ENTER = 'cd -- "$1" && shift && PYTHONUNBUFFERED="${PYTHONUNBUFFERED-1}" && export PYTHONUNBUFFERED || exit 126'
# The shell stays, so that a command that a signal ends has an exit code: ssh itself would say 255 of every such end.
_ATTENDED = f'{_ENTER}; trap : INT QUIT; "$@"'
_LET_GO = f"""
run="$HOME/.gpu-dev-run"
{_ENTER}
if [ -e "$run/pid" ] && [ ! -e "$run/exit" ] && kill -0 "$(cat "$run/pid")" 2>/dev/null; then
  echo "something runs here already" >&2
  exit 75
fi
mkdir -p "$run" && rm -f "$run/exit" "$run/pid" && : >"$run/output" || exit 73
apart=nohup
command -v setsid >/dev/null 2>&1 && apart=setsid
"$apart" sh -c '
  run=$1
  shift
  "$@"
  echo $? >"$run/exit.new"
  mv "$run/exit.new" "$run/exit"
' sh "$run" "$@" >"$run/output" 2>&1 </dev/null &
echo $! >"$run/pid"
"""
_FIND = f"""
run="$HOME/.gpu-dev-run"
if [ ! -e "$run/output" ]; then
  echo "nothing was run here with --detach" >&2
  exit {NOTHING_RAN}
fi
"""
_OUTPUT = f"""{_FIND}
cat "$run/output"
"""
# What is over is looked at first: then everything that was written before is shown.
_FOLLOW = f"""{_FIND}
shown=0
while :; do
  over=
  if [ -e "$run/exit" ] || ! kill -0 "$(cat "$run/pid" 2>/dev/null)" 2>/dev/null; then over=1; fi
  size=$(($(wc -c <"$run/output")))
  if [ "$size" -gt "$shown" ]; then
    tail -c "+$((shown + 1))" "$run/output" | head -c "$((size - shown))"
    shown=$size
  fi
  [ -z "$over" ] || break
  sleep 0.3
done
if [ ! -e "$run/exit" ]; then
  echo "it was ended from outside" >&2
  exit 137
fi
exit "$(cat "$run/exit")"
"""


def attended(folder: str, command: Sequence[str]) -> tuple[str, ...]:
    """Runs in that folder, relative to the home there, for as long as the connection lasts."""
    return ("sh", "-c", _ATTENDED, "sh", folder, *_as_arguments(command))


def let_go(folder: str, command: Sequence[str]) -> tuple[str, ...]:
    """Begins there, and goes on by itself."""
    return ("sh", "-c", _LET_GO, "sh", folder, *_as_arguments(command))


def output(*, follow: bool) -> tuple[str, ...]:
    """What one that was let go has written; `follow`: until it has ended, with its exit code."""
    return ("sh", "-c", _FOLLOW if follow else _OUTPUT, "sh")


def _as_arguments(command: Sequence[str]) -> tuple[str, ...]:
    """One argument is a line for the shell; several arrive as they are."""
    return ("sh", "-c", command[0]) if len(command) == 1 else tuple(command)
