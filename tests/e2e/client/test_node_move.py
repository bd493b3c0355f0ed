"""`gpu-dev-server nodes move` on a real system: the owner finds elsewhere what was there before."""

import re
import secrets

import pytest

from gpudev import GpuDev
from support.system.embedded_system import System

pytestmark = pytest.mark.slow


def test_the_disk_the_set_up_and_jupyter_are_there_again(system: System, client: GpuDev) -> None:
    job = client.jobs.submit(
        gpus=1, hours=1, name="mine", disk=f"moved-{secrets.token_hex(3)}", environment={"COLOUR": "green"}
    )
    server = client.server(job.reservation_id, timeout=60)
    server.run("echo kept > ~/note")
    assert client.jupyter.enable(job.reservation_id, wait=False).state != "off"
    said = system.server("nodes", "move", job.reservation_id, "--reason", "a new driver").stdout
    found = re.search(r"continues as ([0-9a-f]{8})", said)
    assert found is not None, said
    again = client.server(found[1], timeout=60)
    assert again.id != job.reservation_id
    assert again.run("cat ~/note; echo $COLOUR").stdout == "kept\ngreen\n"
    assert client.jupyter.get(again.id).state != "off"
    assert system.server("nodes", "move", job.reservation_id).stdout == said, "once more changes nothing"
    history = [event.message for event in client.jobs.events(again.id)]
    assert any(f"continues {job.reservation_id[:8]}" in message for message in history)
