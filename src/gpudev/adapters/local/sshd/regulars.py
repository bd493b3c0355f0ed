"""Who is logged in with which key: whoever's key is taken off the list is sent away."""

import base64

import asyncssh

from gpudev.adapters.local.sshd.files import ChangingFile


class Regulars:
    """Looks at the list only while somebody is logged in."""

    def __init__(self, authorized_keys_path: str) -> None:
        self._list = ChangingFile(authorized_keys_path)
        self._here: dict[asyncssh.SSHServerConnection, str] = {}

    def came(self, connection: asyncssh.SSHServerConnection, key_data: bytes) -> None:
        self._here[connection] = base64.b64encode(key_data).decode()

    def left(self, connection: asyncssh.SSHServerConnection) -> None:
        self._here.pop(connection, None)

    def look(self) -> None:
        """A list that cannot be read says nothing about anybody: nobody new gets in, and nobody is sent away."""
        if not self._here:
            return
        text = self._list.read_if_changed()
        if text is None:
            return
        known = set(text.split())
        for connection, key in list(self._here.items()):
            if key not in known:
                connection.disconnect(asyncssh.DISC_BY_APPLICATION, "you are let in here no longer")
