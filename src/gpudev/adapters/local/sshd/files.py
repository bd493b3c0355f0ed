"""Files through which the control plane speaks to a dev server: looked at now and then, read when they changed."""

import os

_MOST_READ = 1024 * 1024


class WatchedFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._signature: tuple[int, int, int] | None = None

    def read_if_changed(self) -> str | None:
        """Its text; empty when it is gone. None: nothing new, or it cannot be read right now."""
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                info = os.fstat(file.fileno())
                signature = (info.st_ino, info.st_mtime_ns, info.st_size)
                if signature == self._signature:
                    return None
                text = file.read(_MOST_READ)
        except FileNotFoundError:
            signature, text = (0, 0, 0), ""
            if signature == self._signature:
                return None
        except OSError:
            return None
        self._signature = signature
        return text
