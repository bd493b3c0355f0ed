"""Who is logged in with which key: whoever's key is taken off the list is sent away."""

import base64

import asyncssh

from gpudev.adapters.local.sshd.files import WatchedFile


class KeySessions:
    """Looks at the list only while somebody is logged in."""

    def __init__(self, authorized_keys_path: str) -> None:
        self._authorized_keys = WatchedFile(authorized_keys_path)
        self._connections: dict[asyncssh.SSHServerConnection, str] = {}

    def add_connection(self, connection: asyncssh.SSHServerConnection, key_data: bytes) -> None:
        self._connections[connection] = base64.b64encode(key_data).decode()

    def remove_connection(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.pop(connection, None)

    def disconnect_revoked(self) -> None:
        """A list that cannot be read says nothing about anybody: nobody new gets in, and nobody is sent away."""
        if not self._connections:
            return
        text = self._authorized_keys.read_if_changed()
        if text is None:
            return
        known = set(text.split())
        for connection, key in list(self._connections.items()):
            if key not in known:
                connection.disconnect(asyncssh.DISC_BY_APPLICATION, "you are let in here no longer")
