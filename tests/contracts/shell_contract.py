"""What people find behind the ssh command, wherever a dev server runs: tried with the system's own ssh, scp and sftp.

An adapter's tests derive from `ShellContract` and give it an `access` fixture: the way into a dev server that is ready.
It may be the same one for all of them, and for a test that is tried again.
"""

import asyncio
import hashlib
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpudev.domain.reservations.reservation import SshEndpoint
from support.polling import eventually_async

_PATIENCE_S = 60.0
_MEGABYTES = 8


@dataclass(frozen=True)
class SshAccess:
    connection: SshEndpoint
    key: Path
    folder: Path
    """For what belongs to the client."""

    def options(self) -> list[str]:
        known = self.folder / f"known-{self.connection.port}"
        if not known.exists():  # several may read it just now
            known.write_text(f"[{self.connection.host}]:{self.connection.port} {self.connection.host_key}\n")
        settings = {
            "UserKnownHostsFile": str(known),
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
        }
        return ["-F", "none", "-i", str(self.key), *(f"-o{name}={value}" for name, value in settings.items())]

    @property
    def who(self) -> str:
        return f"{self.connection.user}@{self.connection.host}"

    def ssh(self, *flags: str) -> list[str]:
        return ["ssh", *self.options(), "-p", str(self.connection.port), *flags, self.who]

    async def run(
        self, command: str, stdin: bytes = b"", *flags: str, expect: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        done = await _run([*self.ssh(*flags), command], stdin)
        assert done.returncode == expect, (command, done.returncode, done.stdout[-500:], done.stderr[-500:])
        return done

    async def out(self, command: str) -> str:
        return (await self.run(command)).stdout.decode()

    async def copy(self, *paths: str) -> None:
        """scp; a path that begins with a colon is there."""
        places = [self.who + path if path.startswith(":") else path for path in paths]
        done = await _run(["scp", "-q", "-p", "-r", *self.options(), "-P", str(self.connection.port), *places])
        assert done.returncode == 0, done.stderr

    async def arrive(self) -> "SshAccess":
        """Until the way in is open: whoever forwards the port may learn of it a moment later."""

        async def is_open() -> bool:
            return (await _run([*self.ssh(), "true"])).returncode != 255

        await eventually_async(is_open, within=_PATIENCE_S, every=0.1)
        return self


class ShellContract:
    @pytest.fixture
    async def access(self) -> AsyncIterator[SshAccess]:
        raise NotImplementedError("an adapter's tests say how to get in")
        yield

    async def test_people_work_as_dev_in_their_home(self, access: SshAccess) -> None:
        assert (
            await access.out("id -un; echo $HOME; pwd; echo $USER $LOGNAME") == "dev\n/home/dev\n/home/dev\ndev dev\n"
        )

    async def test_what_a_command_says_and_how_it_ends_arrives(self, access: SshAccess) -> None:
        done = await access.run("echo out; echo err >&2; exit 7", expect=7)
        assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
        assert (await access.run("kill -9 $$", expect=255)).stdout == b""

    async def test_bytes_pass_unchanged_in_both_directions(self, access: SshAccess) -> None:
        sent = os.urandom(_MEGABYTES * 1024 * 1024)
        assert (await access.run("cat", sent)).stdout == sent

    async def test_only_the_key_that_was_given_opens_it_and_only_for_dev(self, access: SshAccess) -> None:
        stranger = access.folder / "stranger"
        assert (await _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)])).returncode == 0
        other = SshAccess(access.connection, stranger, access.folder)
        assert (await _run([*other.ssh(), "true"])).returncode == 255
        assert (
            await _run([*access.ssh("-l", "root")[:-1], f"root@{access.connection.host}", "true"])
        ).returncode == 255

    async def test_a_file_in_the_home_is_there_for_the_next_session(self, access: SshAccess) -> None:
        await access.run("umask 077; echo 'a line' > ~/file.txt; ln -sf file.txt ~/link; mkdir -p ~/a/b")
        assert await access.out("cat ~/link; stat -c %a ~/file.txt; cd ~/a/b && pwd") == "a line\n600\n/home/dev/a/b\n"

    async def test_files_are_copied_there_and_back(self, access: SshAccess) -> None:
        tree = access.folder / "tree"
        (tree / "sub folder").mkdir(parents=True)
        data = os.urandom(300_000)
        (tree / "sub folder" / "data").write_bytes(data)
        (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (tree / "run.sh").chmod(0o755)
        await access.copy(str(tree), ":/home/dev/")
        assert await access.out("~/tree/run.sh") == "ran\n"
        digest = (await access.out("sha256sum '/home/dev/tree/sub folder/data'")).split()[0]
        assert digest == hashlib.sha256(data).hexdigest()
        await access.copy(":/home/dev/tree", str(access.folder / "back"))
        assert (access.folder / "back" / "sub folder" / "data").read_bytes() == data
        assert (access.folder / "back" / "run.sh").stat().st_mode & 0o777 == 0o755

    async def test_sftp_lists_renames_and_removes(self, access: SshAccess) -> None:
        batch = b"mkdir box\nput /etc/hostname box/one\nrename box/one box/two\nls -1 box\nrm box/two\nrmdir box\n"
        command = ["sftp", "-q", "-b", "-", *access.options(), "-P", str(access.connection.port), access.who]
        done = await _run(command, batch)
        assert done.returncode == 0, done.stderr
        assert b"box/two" in done.stdout
        assert await access.out("ls -d ~/box 2>/dev/null || echo gone") == "gone\n"

    async def test_a_terminal_has_the_clients_size_and_kind(self, access: SshAccess) -> None:
        done = await access.run("tty >/dev/null && echo terminal; echo $TERM", b"", "-tt")
        assert b"terminal" in done.stdout
        assert (await access.run("tty; true")).stdout.strip() == b"not a tty"

    async def test_a_port_there_is_reached_from_here(self, access: SshAccess) -> None:
        """By -W: what the client says goes to the port, and back."""
        serve = "import socket;s=socket.create_server(('127.0.0.1',0));print(s.getsockname()[1],flush=True)"
        serve += ";c,_=s.accept();c.sendall(c.recv(99).upper());c.close()"
        server = await asyncio.create_subprocess_exec(
            *access.ssh(), f'python3 -c "{serve}"', stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                port = int(await server.stdout.readline())
                done = await _run([*access.ssh("-W", f"127.0.0.1:{port}")], b"hello")
                assert done.stdout == b"HELLO"
                await server.wait()
        finally:
            if server.returncode is None:
                server.kill()
                await server.wait()

    async def test_many_sessions_at_once_do_not_disturb_each_other(self, access: SshAccess) -> None:
        answers = await asyncio.gather(*(access.out(f"sleep 0.2; echo {number}") for number in range(12)))
        assert answers == [f"{number}\n" for number in range(12)]

    async def test_what_a_session_leaves_running_goes_on(self, access: SshAccess) -> None:
        await access.run("rm -f ~/later; nohup sh -c 'sleep 0.5; echo done > ~/later' >/dev/null 2>&1 &")
        command = "for _ in $(seq 100); do [ -s ~/later ] && break; sleep 0.1; done; cat ~/later"
        assert await access.out(command) == "done\n"


async def _run(command: list[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return await asyncio.to_thread(
        subprocess.run, command, input=stdin, capture_output=True, timeout=_PATIENCE_S, check=False
    )
