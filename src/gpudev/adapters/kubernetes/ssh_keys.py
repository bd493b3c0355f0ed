"""Key pairs we make for dev servers (host keys, and the key by which a gang's members reach each other)."""

from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class KeyPair:
    private: str
    """In OpenSSH's own format."""
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
    """Raises ValueError where it is no private key."""
    key = serialization.load_ssh_private_key(private.encode(), password=None)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private, line.decode())
