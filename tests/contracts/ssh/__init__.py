"""What every dev server promises to the system's own ssh, scp, sftp and rsync, and to people at a terminal.

A server's tests derive from `SshContract`, or from the parts of it, and give them `start_ssh`.
"""

from contracts.ssh.commands import CommandContract
from contracts.ssh.files import FileContract
from contracts.ssh.forwarding import ForwardingContract
from contracts.ssh.login import LoginContract
from contracts.ssh.terminals import TerminalContract

__all__ = ["CommandContract", "FileContract", "ForwardingContract", "LoginContract", "SshContract", "TerminalContract"]


class SshContract(LoginContract, CommandContract, TerminalContract, FileContract, ForwardingContract):
    pass
