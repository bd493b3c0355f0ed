"""What is written down is there whole or not at all."""

import resource
import subprocess
import sys
from pathlib import Path

from gpudev.adapters.atomic_write import write_atomically

_WRITE = (
    "import sys; from gpudev.adapters.local.servers.pid1_reports import write_atomically;"
    "write_atomically(sys.argv[1], 'x' * 99)"
)


def test_a_disk_that_fills_up_halfway_leaves_what_was_there_and_no_draft(tmp_path: Path) -> None:
    paper = tmp_path / "process.json"
    write_atomically(paper, "before")
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(paper)],
        # A limit behaves like a full disk: ten bytes are taken, the next are refused.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)),
        env={"PYTHONPATH": ":".join(path for path in sys.path if path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
    )
    assert b"File too large" in done.stderr
    assert paper.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["process.json"]
