"""A dev server's host key: made once per reservation, kept in an owner-only file, the same after every restart."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpudev.adapters.local.servers.pid1_reports import write_atomically


def ensure_host_key(path: Path) -> str:
    """The public half, as `ssh-ed25519 AAAA…`."""
    if path.exists():
        return public_key_line(path.read_bytes())
    text = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_atomically(path, text.decode(), durable=True)
    return public_key_line(text)


def public_key_line(private: bytes) -> str:
    key = serialization.load_ssh_private_key(private, password=None)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line.decode()
