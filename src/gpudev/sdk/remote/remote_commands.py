"""Commands on a dev server: attached, in a folder, or detached.

The scripts are fixed; user input is passed as arguments and never becomes part of a script. A detached run keeps its
files in one folder of the home (`domain.reservations.command_exit`): output, pid, exit code at the end, and, if the
reservation ends with it, a mark for the dev server's own program.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpudev import paths
from gpudev.domain.reservations.command_exit import EXIT_FILE, OUTPUT_FILE, PID_FILE, RESERVATION_FILE, RUN_FOLDER
from gpudev.domain.sessions.addons import JUPYTER_ENVIRONMENT
from gpudev.sdk.remote import openssh

EXIT_NOTHING_RAN = 4
_ENTER_FOLDER = 'cd -- "$1" && shift && PYTHONUNBUFFERED="${PYTHONUNBUFFERED-1}" && export PYTHONUNBUFFERED || exit 126'
_SHELL_LINE = 'exec "${SHELL:-sh}" -c "$1"'
# The shell stays as parent, so that a command killed by a signal has an exit code: ssh itself would return 255, as for
# a failed connection.
_RUN_ATTACHED = '"$@"; exit $?'
_RUN_ATTACHED_IN_FOLDER = f'{_ENTER_FOLDER}; trap : INT QUIT; "$@"'
# A pid file on the disk may be from an earlier dev server, and the pid may have been reused.
_IS_RUNNING = f"""
runs() {{
  kill -0 "$1" 2>/dev/null || return 1
  [ -r "/proc/$1/cmdline" ] || return 0
  case "$({{ tr '\\0' ' ' <"/proc/$1/cmdline"; }} 2>/dev/null)" in *"{RUN_FOLDER}"*) return 0 ;; esac
  return 1
}}
"""
# The mark is written last, when the pid file exists.
_RUN_DETACHED = f"""{_IS_RUNNING}
run="$HOME/{RUN_FOLDER}" ends=$1
shift
{_ENTER_FOLDER}
if [ -e "$run/{PID_FILE}" ] && [ ! -e "$run/{EXIT_FILE}" ] && runs "$(cat "$run/{PID_FILE}")"; then
  echo "another detached command is still running" >&2
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
  echo "Error: no command was started with --detach." >&2
  exit {EXIT_NOTHING_RAN}
fi
"""
_SHOW_OUTPUT = f"""{_FIND_RUN}
cat "$run/{OUTPUT_FILE}"
"""
# The end is checked before the output is read, so that no output is missed.
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
  echo "the command was killed" >&2
  exit 137
fi
exit "$(cat "$run/{EXIT_FILE}")"
"""
# The environment sees the system's packages, so that notebooks find what the image has. `venv` without pip works where
# Debian's python3-venv is missing; the system's pip then installs into it. PEP 668 does not apply to an environment.
_INSTALL_JUPYTER = f"""
own="$HOME/{JUPYTER_ENVIRONMENT}"
if command -v jupyter-lab >/dev/null 2>&1 || python3 -c "import jupyterlab" 2>/dev/null ||
  "$own/bin/jupyter-lab" --version >/dev/null 2>&1; then
  echo "JupyterLab is installed already."
  exit 0
fi
if ! command -v python3 >/dev/null 2>&1; then
  echo "There is no python3 in this dev server."
  exit 1
fi
echo "Installing JupyterLab into ~/{JUPYTER_ENVIRONMENT} ..."
python3 -m venv --clear --system-site-packages "$own" >/dev/null 2>&1 ||
  python3 -m venv --clear --system-site-packages --without-pip "$own" || exit 1
if ! "$own/bin/python" -m pip --version >/dev/null 2>&1; then
  echo "There is no pip in this dev server (Debian and Ubuntu: apt install python3-venv)."
  exit 1
fi
exec "$own/bin/python" -m pip install --disable-pip-version-check --no-input jupyterlab
"""


def attached_command(command: Sequence[str]) -> tuple[str, ...]:
    """Runs in the remote home folder while the connection lasts."""
    return ("sh", "-c", _RUN_ATTACHED, "sh", *_as_arguments(command))


def attached_command_in_folder(folder: str, command: Sequence[str]) -> tuple[str, ...]:
    """Runs in a folder relative to the remote home, while the connection lasts."""
    return ("sh", "-c", _RUN_ATTACHED_IN_FOLDER, "sh", folder, *_as_arguments(command))


def detached_command(folder: str, command: Sequence[str], *, ends_reservation: bool) -> tuple[str, ...]:
    """Starts in the background. `ends_reservation`: the reservation ends with the command."""
    return ("sh", "-c", _RUN_DETACHED, "sh", "yes" if ends_reservation else "", folder, *_as_arguments(command))


def output_command(*, follow: bool) -> tuple[str, ...]:
    """Prints the output of the detached command; `follow`: until it ends, with its exit code."""
    return ("sh", "-c", _FOLLOW_OUTPUT if follow else _SHOW_OUTPUT, "sh")


def install_jupyter_command() -> tuple[str, ...]:
    """Installs Jupyter Lab in an environment of its own, unless a login shell finds one."""
    return ("sh", "-c", 'exec "${SHELL:-sh}" -lc "$1"', "sh", _INSTALL_JUPYTER)


def _as_arguments(command: Sequence[str]) -> tuple[str, ...]:
    """One argument is a command line for the user's shell, as with ssh; several are passed unchanged."""
    return ("sh", "-c", _SHELL_LINE, "sh", command[0]) if len(command) == 1 else tuple(command)


# Reservations with a command detached from this machine, so that `gpu-dev logs` shows its output.


def record_detached_run(env: Mapping[str, str], reservation_id: str) -> None:
    """A convenience: errors are ignored."""
    with suppress(OSError):
        folder = _runs_folder(env)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / reservation_id).touch(mode=0o600)
        openssh.remove_old_files(folder)


def is_detached_run(env: Mapping[str, str], reservation_id: str) -> bool:
    return (_runs_folder(env) / reservation_id).exists()


def _runs_folder(env: Mapping[str, str]) -> Path:
    return paths.personal_dir(env) / "runs"
