"""Adapts asyncssh to what OpenSSH's clients expect of a server. No policy, no processes."""

import asyncio
import socket
from contextlib import suppress
from typing import cast

import asyncssh
from asyncssh.packet import SSHPacket, SSHPacketLogger

SERVER_VERSION = "OpenSSH_9.2 gpu-dev"
"""The client reports that it stops reading (`ssh host yes | head -1`) only to servers with this name."""

_MAX_AUTH_FAILURES = 30
"""Each unknown key that the client offers is one; agents may hold many."""
_SEND_HIGH_WATER = 512 * 1024
_SEND_LOW_WATER = 128 * 1024
_CHUNK_BYTES = 32 * 1024
"""Small, because asyncssh copies the rest of its input twice for every packet it takes from it."""
_QUICK_ACKNOWLEDGEMENT: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it


class OpenSshSession(asyncssh.SSHServerSession[bytes]):
    """Events of our channels, in addition to asyncssh's."""

    def output_unwanted(self) -> None:
        """The client reads no more of the standard output."""

    def congestion_changed(self, is_congested: bool) -> None:
        """The send buffer of the whole connection is full, or has space again."""


class OpenSshChannel(asyncssh.SSHServerChannel[bytes]):
    def _process_exec_request(self, packet: SSHPacket) -> bool:
        """A command is bytes, and not necessarily UTF-8."""
        command = packet.get_string()
        packet.check_end()
        return self._start_session(command=command.decode("utf-8", "surrogateescape"))

    def _process_eow_at_openssh_dot_com_request(self, packet: SSHPacket) -> bool:
        packet.check_end()
        if isinstance(self._session, OpenSshSession):
            self._session.output_unwanted()
        return True

    def notify_congestion(self, is_congested: bool) -> None:
        if isinstance(self._session, OpenSshSession):
            self._session.congestion_changed(is_congested)


class OpenSshConnection(asyncssh.SSHServerConnection):
    _auth_failures = 0
    key_data: bytes | None = None
    """The key that logged in. None: no login yet."""

    async def validate_public_key(self, username: str, key_data: bytes, msg: bytes, signature: bytes) -> bool:
        is_valid = await super().validate_public_key(username, key_data, msg, signature)
        if is_valid and msg:
            self.key_data = key_data
        return is_valid

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=_SEND_HIGH_WATER, low=_SEND_LOW_WATER)
        super().connection_made(transport)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if not self._auth_complete:
            self._acknowledge_at_once()
        for start in range(0, len(data), _CHUNK_BYTES):
            super().data_received(data[start : start + _CHUNK_BYTES], datatype)

    def _acknowledge_at_once(self) -> None:
        """During the login, OpenSSH's client waits for the kernel's delayed acknowledgement (40 ms) between two of its
        packets. The option must be set again for each of them."""
        if self._transport and _QUICK_ACKNOWLEDGEMENT:
            with suppress(OSError):  # already closed, or not TCP
                self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _QUICK_ACKNOWLEDGEMENT, 1)

    async def reload_config(self) -> None:
        """Does nothing: there are no per-user options, and loading them would start a thread."""

    def send_userauth_failure(self, partial_success: bool) -> None:
        self._auth_failures += 1
        if self._auth_failures > _MAX_AUTH_FAILURES:
            self.disconnect(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, "Too many authentication failures")
        else:
            super().send_userauth_failure(partial_success)

    def send_packet(self, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None) -> None:
        """Leaves out the empty packet that asyncssh sends before every other. It protects ciphers that we do not offer,
        and costs an encryption and a system call each time."""
        if pkttype != asyncssh.MSG_IGNORE:
            super().send_packet(pkttype, *args, handler=handler)

    def create_server_channel(
        self, encoding: str | None = "", errors: str = "", window: int = 0, max_pktsize: int = 0
    ) -> asyncssh.SSHServerChannel[bytes]:
        self._update_recv_pktlen(max_pktsize or self._max_pktsize)
        return OpenSshChannel(
            self,
            self._loop,
            allow_pty=True,
            line_editor=False,
            line_echo=False,
            line_history=0,
            max_line_length=0,
            encoding=None,
            errors="strict",
            window=window or self._window,
            max_pktsize=max_pktsize or self._max_pktsize,
        )

    def pause_writing(self) -> None:
        self._notify_congestion(True)

    def resume_writing(self) -> None:
        self._notify_congestion(False)

    def _notify_congestion(self, is_congested: bool) -> None:
        for channel in list(self._channels.values()):
            if isinstance(channel, OpenSshChannel):
                channel.notify_congestion(is_congested)
