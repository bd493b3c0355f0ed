"""The owner's own set-up of a dev server: dotfiles, then the start-up script, once, when the SSH server answers.

It runs as the dev server's user, with the environment of a session, beside people's sessions: nobody waits for it and
nothing fails with it. What is printed goes into a file in the home; what became of it is told in words that hold
nothing of its content. All of it is data: it reaches programs as arguments, files and variables.
"""

import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpudev.adapters.local.machine import linux, namespaces
from gpudev.adapters.local.machine.launch_spec import LaunchSpec
from gpudev.adapters.local.sshd.child_process import reset_signals
from gpudev.adapters.local.sshd.sshd_config import SshdConfig, session_environment

LOG = ".cache/gpu-dev/setup.log"
DOTFILES = ".dotfiles"
INSTALLERS = (
    *("install.sh", "install", "bootstrap.sh", "bootstrap", "setup.sh", "setup"),
    *("script/install", "script/bootstrap", "script/setup"),
)
"""The first of these that there is."""
CLONE_WITHIN_S = 120.0
INSTALL_WITHIN_S = 600.0
SCRIPT_WITHIN_S = 3600.0
_RUNNING = "running"
_GIT = {
    # Nobody is there to be asked.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new",
    "GIT_ALLOW_PROTOCOL": "https:ssh",
}


def fork_personalization(
    launch: LaunchSpec, config: SshdConfig, report: int, close_others: Callable[[set[int]], None]
) -> None:
    """Begin. `report`: the file that hears what became of it."""
    this = os.getpid()
    if os.fork():
        return
    try:
        reset_signals()
        close_others({0, 1, 2, report})
        if launch.max_processes is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (launch.max_processes, launch.max_processes))
        namespaces.drop_privileges(launch)
        if linux.IS_LINUX:
            linux.set_process_name("gpu-dev-setup")
            linux.die_with_parent(this)
        # An own uid may have no entry among the users, and libraries ask where home is.
        os.environ.update(HOME=config.home, LANG="C.UTF-8", PATH=os.defpath)
        os.chdir("/")
        _personalize(launch, config, PersonalizationReporter(report))
    except BaseException:  # noqa: BLE001 - a forked process must never run on in its parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class PersonalizationReporter:
    """How far it is, written where the control plane looks, who reads it as a stranger's text."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, words: str, *, is_final: bool) -> None:
        text = json.dumps({"words": words, "final": is_final}).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))


def _personalize(launch: LaunchSpec, config: SshdConfig, report: PersonalizationReporter) -> None:
    shell = config.shell if os.access(config.shell, os.X_OK) else "/bin/sh"
    environment = session_environment(config, shell, {}, {})
    try:
        runner = PersonalizationRunner(Path(config.home), shell, environment, _open_log(Path(config.home)))
    except OSError as error:  # a full disk, or a home that is closed to its owner
        report.write(f"nothing was set up: the home cannot be written to ({error.strerror})", is_final=True)
        return
    said: list[str] = []
    if launch.dotfiles is not None:
        said += runner.install_dotfiles(launch.dotfiles)
    if launch.startup_script is not None:
        report.write("; ".join([*said, f"start-up script: {_RUNNING}"]), is_final=False)
        said.append(runner.run_startup_script(launch.startup_script))
    failed = any(": " in one and not one.endswith((": done", ": cloned", ": up to date")) for one in said)
    report.write("; ".join(said) + (f" (~/{LOG} has more)" if failed else ""), is_final=True)


@dataclass(frozen=True, slots=True)
class PersonalizationRunner:
    home: Path
    shell: str
    environment: Mapping[bytes, bytes]
    log: int

    def install_dotfiles(self, url: str) -> list[str]:
        """What was done, in words."""
        folder = self.home / DOTFILES
        git = shutil.which("git", path=os.fsdecode(self.environment[b"PATH"]))
        if git is None:
            return ["dotfiles: there is no git here"]
        if not os.path.lexists(folder):
            end = self._clone(git, url, folder)
            told = "dotfiles: cloned" if end is None else f"dotfiles: git clone {end}"
        elif self._origin_url(git, folder) != url:
            return [f"dotfiles: ~/{DOTFILES} is not a clone of this repository; it stays as it is"]
        else:
            end = self._execute([git, "-C", str(folder), "pull", "--ff-only"], CLONE_WITHIN_S, more=_GIT)
            told = "dotfiles: up to date" if end is None else f"dotfiles: git pull {end}"
        return [told, *self._install(folder)] if end is None else [told]

    def run_startup_script(self, text: str) -> str:
        """From a file of its own, which only its user may read and which is gone afterwards."""
        folder = self.environment.get(b"XDG_RUNTIME_DIR") or self.environment.get(b"TMPDIR") or b"/tmp"
        path = Path(os.fsdecode(folder), f"gpu-dev-startup-{secrets.token_hex(8)}")
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w", encoding="utf-8") as file:
                file.write(text)
            end = self._execute(self._command_for(path), SCRIPT_WITHIN_S)
        except OSError as error:
            return f"start-up script: it could not be written ({error.strerror})"
        finally:
            path.unlink(missing_ok=True)
        return "start-up script: done" if end is None else f"start-up script: {end}"

    def _clone(self, git: str, url: str, folder: Path) -> str | None:
        """Beside, then moved: half a clone would be taken for a whole one the next time."""
        draft = folder.with_name(f"{DOTFILES}.{secrets.token_hex(4)}")
        end = self._execute(
            [git, "clone", "--quiet", "--recurse-submodules", "--", url, str(draft)], CLONE_WITHIN_S, more=_GIT
        )
        if end is None:
            draft.rename(folder)
        else:
            shutil.rmtree(draft, ignore_errors=True)
        return end

    def _origin_url(self, git: str, folder: Path) -> str | None:
        try:
            asked = subprocess.run(
                [git, "-C", str(folder), "config", "--local", "--get", "remote.origin.url"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CLONE_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return asked.stdout.decode(errors="replace").strip() if asked.returncode == 0 else None

    def _install(self, folder: Path) -> list[str]:
        for name in INSTALLERS:
            path = folder / name
            if path.is_file():
                end = self._execute(self._command_for(path), INSTALL_WITHIN_S, folder=folder)
                return [f"{name}: done" if end is None else f"{name}: {end}"]
        return []

    def _command_for(self, path: Path) -> list[str]:
        """A file that says what it wants to be run by is run so; any other is a shell's."""
        with path.open("rb") as file:
            speaks = file.read(2) == b"#!"
        return [str(path)] if speaks and os.access(path, os.X_OK) else [self.shell, str(path)]

    def _execute(
        self,
        command: Sequence[str],
        within_s: float,
        *,
        folder: Path | None = None,
        more: Mapping[str, str] | None = None,
    ) -> str | None:
        """None: it ended well. Else how it ended, in words. What it leaves in the background goes on."""
        environment = {**{name.encode(): value.encode() for name, value in (more or {}).items()}, **self.environment}
        try:
            process = subprocess.Popen(
                command,
                cwd=folder or self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,
            )
        except OSError as error:
            return f"could not be started ({error.strerror})"
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {within_s / 60:g} minutes and was ended"
        if code < 0:
            return f"was killed by signal {-code}"
        return None if code == 0 else f"ended with {code}"


def _open_log(home: Path) -> int:
    path = home / LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
