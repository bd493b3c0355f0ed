"""A user who works against it does not make us read, change or remove anything outside of their disk."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudev.adapters.local.volumes import filesystem, tree_walk
from gpudev.adapters.local.volumes.copied_files import CopiedFileTable
from gpudev.adapters.local.volumes.thread_jobs import open_directory
from gpudev.adapters.local.volumes.tree_copy import ContentsCounter, CopyProgress, TreeCopy
from gpudev.adapters.local.volumes.tree_walk import empty_folder, remove_folder
from gpudev.domain.disks.contents import Contents, DiskEntryKind
from support.local.local_world import IS_ROOT
from support.paths import SUPPORT

SCRIPTS = SUPPORT / "local"
SECRET = "must never be seen"
FOR_S = 3.0


@pytest.fixture(params=["openat2", "older kernels"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "older kernels":
        monkeypatch.setattr(filesystem, "_has_openat2", False)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "folder" / "inner").mkdir(parents=True)
    for place in (folder, folder / "folder", folder / "folder" / "inner", folder / "inner"):
        place.mkdir(exist_ok=True)
        (place / "secret").write_text(SECRET)
        (place / "file").write_text(SECRET)
    return folder


@pytest.fixture
def hostile(tmp_path: Path, outside: Path) -> Iterator[Path]:
    """A tree that somebody never stops changing."""
    folder = tmp_path / "hostile"
    for name in ("a", "b", "c"):
        (folder / name / "inner" / "deep" / "deeper").mkdir(parents=True)
        (folder / name / "inner" / "file").write_text("harmless")
        for number in range(20):
            (folder / name / "inner" / "deep" / "deeper" / f"file{number}").write_text("harmless")
    program = [sys.executable, str(SCRIPTS / "link_swapper.py"), str(folder), str(outside)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as swapping:
        assert swapping.stdout is not None
        assert swapping.stdout.readline() == b"swapping\n"
        yield folder
        assert swapping.poll() is None
        swapping.kill()


def copy(source: Path, target: Path, contents: ContentsCounter | None = None) -> CopyProgress:
    target.mkdir()
    known, tally = CopiedFileTable(target.with_suffix(".files"), create=True), CopyProgress()
    with open_directory(source) as reading, open_directory(target) as writing:
        TreeCopy(reading, writing, known, tally, contents=contents).run()
    known.close()
    return tally


def swap_for_link(path: Path, outside: Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to(outside)


def swap_for_pipe(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("swap", [swap_for_link, swap_for_pipe])
def test_a_file_that_is_replaced_between_two_looks_is_left_out(
    swap: Callable[[Path, Path], None], tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("harmless")
    real_open = os.open

    def swap_then_open(name: Any, *arguments: Any, **more: Any) -> int:
        if name == "file" and not (folder / "aside").exists():
            swap(folder / "file", outside / "secret")
        return real_open(name, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", swap_then_open)
        tally = copy(folder, tmp_path / "copy")
    assert tally.notes == ["file: replaced during the copy"]
    assert not (tmp_path / "copy" / "file").exists()


def test_a_name_that_is_told_twice_is_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it may be of a folder that changes while it is read."""
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("harmless")
    (folder / "link").symlink_to("inner")
    real_look = os.scandir

    @contextlib.contextmanager
    def look_twice(fd: int) -> Iterator[Any]:
        with real_look(fd) as entries:
            found = list(entries)
        yield [*found, *found]

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", look_twice)
        tally = copy(folder, tmp_path / "copy")
    assert tally.left_out == 3
    assert sorted(path.name for path in (tmp_path / "copy").rglob("*")) == ["file", "inner", "link"]
    assert (tmp_path / "copy" / "inner" / "file").read_text() == "harmless"


def test_a_link_that_is_replaced_between_two_looks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("nowhere")
    real_read = os.readlink

    def swap_then_read(name: str, **more: Any) -> str:
        (folder / "link").unlink()
        (folder / "link").mkdir()
        return real_read(name, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "readlink", swap_then_read)
        tally = copy(folder, tmp_path / "copy")
    assert tally.notes == ["link: replaced during the copy"]


@pytest.mark.usefixtures("_kernel")
def test_a_folder_that_is_replaced_between_two_looks_is_left_out(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("harmless")
    real_open = filesystem.open_folder

    def swap_then_open(name: str, above: int) -> int:
        if not (folder / "aside").exists():
            swap_for_link(folder / "inner", outside)
        return real_open(name, above)

    with monkeypatch.context() as patched:
        patched.setattr(tree_walk, "open_folder", swap_then_open)
        tally = copy(folder, tmp_path / "copy")
    assert tally.notes == ["inner: replaced during the copy"]
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.usefixtures("_kernel")
def test_a_folder_that_is_replaced_while_its_tree_is_removed_goes_and_nothing_else(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    (folder / "inner" / "folder").mkdir(parents=True)
    before = sorted(outside.rglob("*"))
    real_open = filesystem.open_folder

    def swap_then_open(name: str, above: int) -> int:
        if not (folder / "aside").exists():
            swap_for_link(folder / "inner", outside)
        return real_open(name, above)

    with monkeypatch.context() as patched:
        patched.setattr(tree_walk, "open_folder", swap_then_open)
        with contextlib.suppress(OSError):
            remove_folder(folder)
    assert not (folder / "inner").is_symlink()
    remove_folder(folder)
    assert not folder.exists()
    assert sorted(outside.rglob("*")) == before


@pytest.mark.usefixtures("_kernel")
def test_the_way_back_from_a_folder_that_was_moved_away_is_found(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ".." leads outside by then."""
    folder = tmp_path / "folder"
    for name in ("a", "b", "c"):
        (folder / "inner" / name).mkdir(parents=True)
        (folder / "inner" / name / "file").write_text("harmless")
    real_look = os.scandir

    def move_then_look(fd: Any) -> Any:
        for name in ("a", "b", "c"):
            path = folder / "inner" / name
            if not (outside / "moved here").exists() and os.path.samestat(os.fstat(fd), path.stat()):
                path.rename(outside / "moved here")
        return real_look(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", move_then_look)
        copy(folder, tmp_path / "copy")
    there = sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*"))
    assert there == ["inner", *(f"inner/{name}{more}" for name in ("a", "b", "c") for more in ("", "/file"))]


@pytest.mark.slow
@pytest.mark.usefixtures("_kernel")
def test_a_copy_holds_nothing_from_outside_whatever_is_swapped_for_links(
    hostile: Path, outside: Path, tmp_path: Path
) -> None:
    rounds = irritated = 0
    started = time.monotonic()
    while time.monotonic() < started + FOR_S or irritated < 3:
        if time.monotonic() > started + 100:
            break  # an attacker who hardly gets to run seldom meets the moment; the tests above choose it
        target = tmp_path / f"copy{rounds}"
        irritated += copy(hostile, target).left_out > 0
        for path in target.rglob("*"):
            if path.is_symlink():
                assert str(path.readlink()).startswith(str(outside)), "a link is copied as the link it is"
            elif path.is_file():
                assert path.read_text() in ("harmless", ""), path
        remove_folder(target)
        rounds += 1


@pytest.mark.usefixtures("_kernel")
def test_a_listing_names_links_and_nothing_that_they_lead_to(tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("harmless")
    targets = {"absolute": str(outside), "a file": str(outside / "secret"), "up": "../outside", "itself": "."}
    for name, target in targets.items():
        (folder / "inner" / name).symlink_to(target)
    (folder / "inner" / "..\n..").symlink_to("../../outside/folder")
    listed = list_contents(folder, tmp_path / "copy")
    assert {entry.path: entry.kind for entry in listed.entries} == {
        "inner": DiskEntryKind.FOLDER,
        "inner/file": DiskEntryKind.FILE,
        "inner/..\n..": DiskEntryKind.LINK,
        **{f"inner/{name}": DiskEntryKind.LINK for name in targets},
    }
    assert (listed.files, listed.folders, listed.size_bytes) == (6, 1, len("harmless"))


@pytest.mark.slow
@pytest.mark.usefixtures("_kernel")
def test_a_listing_names_nothing_from_outside_whatever_is_swapped_for_links(
    hostile: Path, outside: Path, tmp_path: Path
) -> None:
    """What is outside has names and sizes that nothing in the tree ever had."""
    deadline, rounds = time.monotonic() + FOR_S, 0
    while time.monotonic() < deadline:
        listed = list_contents(hostile, tmp_path / f"copy{rounds}")
        assert not [entry for entry in listed.entries if entry.path.endswith("secret") or ".." in entry.path]
        assert {entry.size for entry in listed.entries} <= {0, len("harmless")}
        assert listed.size_bytes <= listed.files * len("harmless")
        rounds += 1


def list_contents(source: Path, target: Path) -> Contents:
    """Of a snapshot, as it is recorded when it is made."""
    counter = ContentsCounter()
    copy(source, target, counter)
    remove_folder(target)
    return counter.to_contents()


@pytest.mark.slow
@pytest.mark.usefixtures("_kernel")
def test_removing_removes_nothing_outside_whatever_is_swapped_for_links(hostile: Path, outside: Path) -> None:
    before = {path: path.stat().st_ino for path in outside.rglob("*")}
    deadline = time.monotonic() + FOR_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), open_directory(hostile) as top:  # moved or filled again under our hands
            empty_folder(top)
    assert {path: path.stat().st_ino for path in outside.rglob("*")} == before
    assert all(path.read_text() == SECRET for path in outside.rglob("*") if path.is_file())


def test_links_in_a_tree_are_removed_and_not_what_they_point_to(tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "to a folder").symlink_to(outside)
    (folder / "to a file").symlink_to(outside / "secret")
    (folder / "same").hardlink_to(outside / "file")
    remove_folder(folder)
    assert not folder.exists()
    assert (outside / "secret").read_text() == (outside / "file").read_text() == SECRET
    (tmp_path / "link").symlink_to(outside)
    remove_folder(tmp_path / "link")
    assert (outside / "secret").exists()
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount")
@pytest.mark.usefixtures("_kernel")
def test_what_is_mounted_in_a_tree_is_neither_copied_nor_removed(tmp_path: Path) -> None:
    folder, mounted = tmp_path / "folder", tmp_path / "folder" / "mounted"
    mounted.mkdir(parents=True)
    (folder / "file").write_text("mine")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
    try:
        (mounted / "theirs").write_text("theirs")
        tally = copy(folder, tmp_path / "copy")
        assert tally.notes == ["mounted: something else is mounted there"]
        assert [path.name for path in (tmp_path / "copy").iterdir()] == ["file"]
        with pytest.raises(OSError, match="cross-device"):
            remove_folder(folder)
        assert (mounted / "theirs").read_text() == "theirs"
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    remove_folder(folder)
    assert not folder.exists()
