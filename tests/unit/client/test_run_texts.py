"""What `gpu-dev run` says about copying and about its end."""

import os

from gpudev.cli.commands.folder_copy import progress_text
from gpudev.cli.commands.reservations.run import closing_line, shown_command
from support.client.fake_views import make_job


def test_the_bar_shows_share_and_rate() -> None:
    assert progress_text(0, 800, 0) == "[" + " " * 24 + "]   0 %"
    assert progress_text(400_000_000, 800_000_000, 4) == "[" + "#" * 12 + " " * 12 + "]  50 %, 100 MB/s"
    assert progress_text(900, 800, 1).startswith("[" + "#" * 24 + "] 100 %"), "files may have grown"
    assert "100 %" in progress_text(0, 0, 1)


def test_the_last_line_says_what_happened_and_where_the_files_are() -> None:
    job = make_job(reservation_id="3f2a9c1e-0000-4000-8000-000000000000", gpu_count=1, disk_name="data")
    assert closing_line(job, 0, 192, is_released=True) == (
        "3f2a9c1e: exit 0 after 3 min; 1 x a100 released; files kept on disk data"
    )
    job.disk_name = None
    assert closing_line(job, 1, 2, is_released=True) == (
        "3f2a9c1e: exit 1 after 2 s; 1 x a100 released; files on scratch space are gone"
    )
    assert closing_line(job, 1, 2, is_released=False) == "3f2a9c1e: exit 1 after 2 s"


def test_the_command_can_be_sent_whatever_its_bytes_are() -> None:
    assert shown_command(("echo $HOME",)) == "echo $HOME"
    assert shown_command(("cat", "two words")) == "cat 'two words'"
    assert shown_command((os.fsdecode(b"cat na\xefve"),)) == "cat na?ve"
    assert len(shown_command(("x" * 2000,))) == 1000
