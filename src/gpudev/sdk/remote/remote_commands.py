"""Commands on a dev server: in a folder there, or detached.

All of it is data for fixed scripts: what a person typed arrives as arguments and is never part of a script's text. A
run that was let go keeps its files in one folder of the home (`domain.reservations.command_exit`): its output, its
process, once it has ended its exit code, and where the reservation is to end with it, a mark for the dev server's own
program.
"""

from collections.abc import Sequence

from gpudev.domain.reservations.command_exit import EXIT_FILE, OUTPUT_FILE, PID_FILE, RESERVATION_FILE, RUN_FOLDER

EXIT_NOTHING_RAN = 4
_ENTER_FOLDER = 'cd -- "$1" && shift && PYTHONUNBUFFERED="${PYTHONUNBUFFERED-1}" && export PYTHONUNBUFFERED || exit 126'
_SHELL_LINE = 'exec "${SHELL:-sh}" -c "$1"'
# In these the shell stays, so that a command that a signal ends has an exit code: ssh itself would say 255 of every
# such end, as it does when there is no connection.
_RUN_ATTACHED = '"$@"; exit $?'
_RUN_ATTACHED_IN_FOLDER = f'{_ENTER_FOLDER}; trap : INT QUIT; "$@"'
# Of a dev server's earlier life, on a disk, a number may be left that somebody else has by now.
_IS_RUNNING = f"""
runs() {{
  kill -0 "$1" 2>/dev/null || return 1
  [ -r "/proc/$1/cmdline" ] || return 0
  case "$({{ tr '\\0' ' ' <"/proc/$1/cmdline"; }} 2>/dev/null)" in *"{RUN_FOLDER}"*) return 0 ;; esac
  return 1
}}
"""
# The mark comes last: whoever finds it finds the process too.
_RUN_DETACHED = f"""{_IS_RUNNING}
run="$HOME/{RUN_FOLDER}" ends=$1
shift
{_ENTER_FOLDER}
if [ -e "$run/{PID_FILE}" ] && [ ! -e "$run/{EXIT_FILE}" ] && runs "$(cat "$run/{PID_FILE}")"; then
  echo "something runs here already" >&2
  exit 75
fi
mkdir -p "$run" && rm -f "$run/{RESERVATION_FILE}" "$run/{EXIT_FILE}" "$run/{PID_FILE}" &&
  : >"$run/{OUTPUT_FILE}" || exit 73
apart=nohup
command -v setsid >/dev/null 2>&1 && apart=setsid
"$apart" sh -c '
  run=$1
  shift
  "$@"
  echo $? >"$run/{EXIT_FILE}.new"
  mv "$run/{EXIT_FILE}.new" "$run/{EXIT_FILE}"
' sh "$run" "$@" >"$run/{OUTPUT_FILE}" 2>&1 </dev/null &
echo $! >"$run/{PID_FILE}" || exit 73
if [ -n "$ends" ]; then
  printf "%s" "${{GPU_DEV_RESERVATION_ID-}}" >"$run/{RESERVATION_FILE}.new" &&
    mv "$run/{RESERVATION_FILE}.new" "$run/{RESERVATION_FILE}" || exit 73
fi
"""
_FIND_RUN = f"""
run="$HOME/{RUN_FOLDER}"
if [ ! -e "$run/{OUTPUT_FILE}" ]; then
  echo "nothing was run here with --detach" >&2
  exit {EXIT_NOTHING_RAN}
fi
"""
_SHOW_OUTPUT = f"""{_FIND_RUN}
cat "$run/{OUTPUT_FILE}"
"""
# What is over is looked at first: then everything that was written before is shown.
_FOLLOW_OUTPUT = f"""{_FIND_RUN}{_IS_RUNNING}
shown=0
while :; do
  over=
  if [ -e "$run/{EXIT_FILE}" ] || ! runs "$(cat "$run/{PID_FILE}" 2>/dev/null)"; then over=1; fi
  size=$(($(wc -c <"$run/{OUTPUT_FILE}")))
  if [ "$size" -gt "$shown" ]; then
    tail -c "+$((shown + 1))" "$run/{OUTPUT_FILE}" | head -c "$((size - shown))"
    shown=$size
  fi
  [ -z "$over" ] || break
  sleep 0.3
done
if [ ! -e "$run/{EXIT_FILE}" ]; then
  echo "it was ended from outside" >&2
  exit 137
fi
exit "$(cat "$run/{EXIT_FILE}")"
"""


def attached_command(command: Sequence[str]) -> tuple[str, ...]:
    """Runs in the home there for as long as the connection lasts."""
    return ("sh", "-c", _RUN_ATTACHED, "sh", *_as_arguments(command))


def attached_command_in_folder(folder: str, command: Sequence[str]) -> tuple[str, ...]:
    """Runs in that folder, relative to the home there, for as long as the connection lasts."""
    return ("sh", "-c", _RUN_ATTACHED_IN_FOLDER, "sh", folder, *_as_arguments(command))


def detached_command(folder: str, command: Sequence[str], *, ends_reservation: bool) -> tuple[str, ...]:
    """Begins there, and goes on by itself. `ends`: the reservation ends with it."""
    return ("sh", "-c", _RUN_DETACHED, "sh", "yes" if ends_reservation else "", folder, *_as_arguments(command))


def output_command(*, follow: bool) -> tuple[str, ...]:
    """What one that was let go has written; `follow`: until it has ended, with its exit code."""
    return ("sh", "-c", _FOLLOW_OUTPUT if follow else _SHOW_OUTPUT, "sh")


def _as_arguments(command: Sequence[str]) -> tuple[str, ...]:
    """One argument is a line for the person's own shell, as over ssh; several arrive as they are."""
    return ("sh", "-c", _SHELL_LINE, "sh", command[0]) if len(command) == 1 else tuple(command)
