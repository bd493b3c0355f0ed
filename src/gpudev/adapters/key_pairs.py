"""Ed25519 key pairs in OpenSSH's formats: for dev servers (host keys), gangs and Jupyter."""

from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpudev.adapters.atomic_write import write_atomically


class KeyPair(NamedTuple):
    private: str
    """As the text of a key file."""
    public: str
    """`ssh-ed25519 AAAA…`"""

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


def generate_key_pair() -> KeyPair:
    private = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return parse_key_pair(private.decode())


def parse_key_pair(private: str) -> KeyPair:
    """Raises ValueError for an invalid private key."""
    key = serialization.load_ssh_private_key(private.encode(), password=None)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private, line.decode())


def ensure_host_key(path: Path) -> str:
    """The public part of a dev server's host key. The key is generated once and kept in a file for its owner only."""
    if path.exists():
        return parse_key_pair(path.read_text("ascii")).public
    pair = generate_key_pair()
    write_atomically(path, pair.private, durable=True)
    return pair.public
