"""Files are served with the person's rights, never with root's."""

from pathlib import Path

import pytest

from support.ssh.dev_server_container import DEV, DevServer

pytestmark = pytest.mark.slow


def test_sftp_may_do_what_the_person_may_and_no_more(container: DevServer, tmp_path: Path) -> None:
    secret = container.root / "root" / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    assert container.sftp(f"get /root/secret {tmp_path}").returncode != 0
    assert container.sftp(f"get /gpudev/config/host_key {tmp_path}").returncode != 0
    assert container.sftp("put /etc/hosts /etc/mine").returncode != 0
    assert not (container.root / "etc" / "mine").exists()
    assert container.sftp("put /etc/hosts /tmp/mine").returncode == 0
    assert (container.root / "tmp" / "mine").stat().st_uid == DEV
