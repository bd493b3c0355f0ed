"""dex, a real OpenID Connect provider (support/go_modules/dex/go.mod says which), built once per machine.

GPU_DEV_DEX names one that is there already.
"""

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support.ports import free_port

if TYPE_CHECKING:
    from gpudev.settings import DatabaseSettings

CLIENT, OTHER_CLIENT = "gpu-dev", "other-program"
PASSWORD = "password"
_PASSWORD_HASH = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W"


@dataclass(frozen=True)
class Account:
    email: str
    groups: tuple[str, ...] = ()
    verified: bool = True


ADA, BOB = Account("ada@example.org", ("gpu-operators",)), Account("bob@example.org")
UNVERIFIED = Account("mallory@example.org", ("gpu-admins",), verified=False)


@dataclass(frozen=True)
class Dex:
    issuer: str


@contextlib.contextmanager
def running(program: Path, folder: Path, database: "DatabaseSettings") -> Iterator[Dex]:
    """With a public client of ours, another one, and the accounts above.

    On a database: its storage in memory waits for itself when a login is refreshed."""
    for attempt in range(3):
        port = free_port()
        dex = Dex(f"http://127.0.0.1:{port}")  # below a path, it does not know its own device logins again
        config = folder / f"dex-{attempt}.json"
        config.write_text(json.dumps(_config(dex.issuer, port, database)))
        with (folder / "dex.log").open("ab") as log:
            process = subprocess.Popen(
                [program, "serve", config], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder
            )
        try:
            if _answers(dex, process):
                yield dex
                return
        finally:
            process.terminate()
            process.wait(10)
    raise RuntimeError(f"dex does not start:\n{(folder / 'dex.log').read_text()[-2000:]}")


def _config(issuer: str, port: int, database: "DatabaseSettings") -> dict[str, object]:
    return {
        "issuer": issuer,
        "storage": {
            "type": "postgres",
            "config": {
                "host": database.host,
                "port": database.port,
                "user": database.user,
                "database": database.database,
                "ssl": {"mode": "disable"},
            },
        },
        "web": {"http": f"127.0.0.1:{port}"},
        "oauth2": {"skipApprovalScreen": True},
        "expiry": {"deviceRequests": "5m", "idTokens": "10m"},
        "enablePasswordDB": True,
        "staticClients": [
            {"id": CLIENT, "name": "gpu-dev", "public": True},
            {"id": OTHER_CLIENT, "name": "another program", "public": True},
        ],
        "staticPasswords": [
            {
                "email": account.email,
                "hash": _PASSWORD_HASH,
                "username": account.email.partition("@")[0],
                "userID": f"id-of-{account.email}",
                "emailVerified": account.verified,
                "groups": list(account.groups),
            }
            for account in (ADA, BOB, UNVERIFIED)
        ],
    }


def _answers(dex: Dex, process: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{dex.issuer}/.well-known/openid-configuration"):
            return True
        time.sleep(0.05)
    return False
