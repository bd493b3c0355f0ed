"""A person's small JSON files, as the client reads and writes them: what is wrong with one is a LocalError."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpudev import credentials_file
from gpudev.sdk.errors import LocalError


@contextmanager
def local_errors() -> Iterator[None]:
    try:
        yield
    except credentials_file.FileUnusable as error:
        raise LocalError(error.message, error.next_step) from error


read_object = local_errors()(credentials_file.read_object)
write_object = local_errors()(credentials_file.write_object)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    with local_errors(), credentials_file.file_lock(path):
        yield
