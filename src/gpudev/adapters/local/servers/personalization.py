"""Personalization of a dev server: dotfiles, then the start-up script, once the SSH server answers.

It runs as the dev server's user, with the environment of a session, in parallel to sessions. Nothing waits for it, and
its failure does no harm. Its output goes to a file in the home. The reported result contains nothing of its content.
Everything from the owner is data: it reaches programs as arguments, files and variables only.
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
"""The first one that exists is run."""
CLONE_TIMEOUT_S = 120.0
INSTALL_TIMEOUT_S = 600.0
SCRIPT_TIMEOUT_S = 3600.0
_RUNNING = "running"
_GIT = {
    # No person is there to answer a prompt.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new",
    "GIT_ALLOW_PROTOCOL": "https:ssh",
}


def fork_personalization(
    launch: LaunchSpec, config: SshdConfig, report: int, close_others: Callable[[set[int]], None]
) -> None:
    """Start it in a child process. `report`: the open file for its progress and result."""
    parent_pid = os.getpid()
    if os.fork():
        return
    exit_code = 1
    try:
        reset_signals()
        close_others({0, 1, 2, report})
        if launch.max_processes is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (launch.max_processes, launch.max_processes))
        namespaces.drop_privileges(launch)
        if linux.IS_LINUX:
            linux.set_process_name("gpu-dev-setup")
            linux.die_with_parent(parent_pid)
        # The uid may have no entry in /etc/passwd, and libraries look up the home.
        os.environ.update(HOME=config.home, LANG="C.UTF-8", PATH=os.defpath)
        os.chdir("/")
        _personalize(launch, config, PersonalizationReporter(report))
        exit_code = 0
    except BaseException:  # noqa: BLE001 - nothing else can report it
        traceback.print_exc()
    finally:
        os._exit(exit_code)  # a forked process must never run on in its parent's code


class PersonalizationReporter:
    """Writes progress and result for the control plane, which treats the text as untrusted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, outcome: str, *, is_final: bool) -> None:
        report = json.dumps({"words": outcome, "final": is_final}).encode()
        os.pwrite(self._descriptor, report, 0)
        os.ftruncate(self._descriptor, len(report))


def _personalize(launch: LaunchSpec, config: SshdConfig, report: PersonalizationReporter) -> None:
    shell = config.shell if os.access(config.shell, os.X_OK) else "/bin/sh"
    environment = session_environment(config, shell, {}, {})
    try:
        runner = PersonalizationRunner(Path(config.home), shell, environment, _open_log(Path(config.home)))
    except OSError as error:  # a full disk, or a home without write permission
        report.write(f"nothing was set up: the home cannot be written to ({error.strerror})", is_final=True)
        return
    outcomes: list[str] = []
    if launch.dotfiles is not None:
        outcomes += runner.install_dotfiles(launch.dotfiles)
    if launch.startup_script is not None:
        report.write("; ".join([*outcomes, f"start-up script: {_RUNNING}"]), is_final=False)
        outcomes.append(runner.run_startup_script(launch.startup_script))
    failed = any(
        ": " in outcome and not outcome.endswith((": done", ": cloned", ": up to date")) for outcome in outcomes
    )
    report.write("; ".join(outcomes) + (f" (~/{LOG} has more)" if failed else ""), is_final=True)


@dataclass(frozen=True, slots=True)
class PersonalizationRunner:
    home: Path
    shell: str
    environment: Mapping[bytes, bytes]
    log: int

    def install_dotfiles(self, url: str) -> list[str]:
        """Clone or update them and run their installer. Returns the results as text for people."""
        folder = self.home / DOTFILES
        git = shutil.which("git", path=os.fsdecode(self.environment[b"PATH"]))
        if git is None:
            return ["dotfiles: there is no git here"]
        if not os.path.lexists(folder):
            failure = self._clone(git, url, folder)
            outcome = "dotfiles: cloned" if failure is None else f"dotfiles: git clone {failure}"
        elif self._origin_url(git, folder) != url:
            return [f"dotfiles: ~/{DOTFILES} is not a clone of this repository; it stays as it is"]
        else:
            failure = self._execute([git, "-C", str(folder), "pull", "--ff-only"], CLONE_TIMEOUT_S, more=_GIT)
            outcome = "dotfiles: up to date" if failure is None else f"dotfiles: git pull {failure}"
        return [outcome, *self._install(folder)] if failure is None else [outcome]

    def run_startup_script(self, text: str) -> str:
        """Run it from a file that only its user may read, and remove the file. Returns the result as text."""
        folder = self.environment.get(b"XDG_RUNTIME_DIR") or self.environment.get(b"TMPDIR") or b"/tmp"
        path = Path(os.fsdecode(folder), f"gpu-dev-startup-{secrets.token_hex(8)}")
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w", encoding="utf-8") as file:
                file.write(text)
            failure = self._execute(self._command_for(path), SCRIPT_TIMEOUT_S)
        except OSError as error:
            return f"start-up script: it could not be written ({error.strerror})"
        finally:
            path.unlink(missing_ok=True)
        return "start-up script: done" if failure is None else f"start-up script: {failure}"

    def _clone(self, git: str, url: str, folder: Path) -> str | None:
        """Clone into a draft folder, then move it: the next start would take an incomplete clone for a complete one."""
        draft = folder.with_name(f"{DOTFILES}.{secrets.token_hex(4)}")
        failure = self._execute(
            [git, "clone", "--quiet", "--recurse-submodules", "--", url, str(draft)], CLONE_TIMEOUT_S, more=_GIT
        )
        if failure is None:
            draft.rename(folder)
        else:
            shutil.rmtree(draft, ignore_errors=True)
        return failure

    def _origin_url(self, git: str, folder: Path) -> str | None:
        try:
            config = subprocess.run(
                [git, "-C", str(folder), "config", "--local", "--get", "remote.origin.url"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CLONE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return config.stdout.decode(errors="replace").strip() if config.returncode == 0 else None

    def _install(self, folder: Path) -> list[str]:
        for name in INSTALLERS:
            path = folder / name
            if path.is_file():
                failure = self._execute(self._command_for(path), INSTALL_TIMEOUT_S, folder=folder)
                return [f"{name}: done" if failure is None else f"{name}: {failure}"]
        return []

    def _command_for(self, path: Path) -> list[str]:
        """Run an executable file with a shebang directly, and any other with the shell."""
        with path.open("rb") as file:
            has_shebang = file.read(2) == b"#!"
        return [str(path)] if has_shebang and os.access(path, os.X_OK) else [self.shell, str(path)]

    def _execute(
        self,
        command: Sequence[str],
        timeout_s: float,
        *,
        folder: Path | None = None,
        more: Mapping[str, str] | None = None,
    ) -> str | None:
        """How it failed, as text for people. None: it succeeded. Background processes that it leaves continue."""
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
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {timeout_s / 60:g} minutes and was ended"
        if code < 0:
            return f"was killed by signal {-code}"
        return None if code == 0 else f"ended with {code}"


def _open_log(home: Path) -> int:
    path = home / LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
