"""Key pairs that we make for ourselves, in OpenSSH's forms."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpudev.adapters.atomic_write import write_atomically


def new_key_pair_texts() -> tuple[str, str]:
    """The private half as the text of a key file, the public half as `ssh-ed25519 AAAA…`."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


# Key pairs we make for dev servers (host keys, and the key by which a gang's members reach each other).


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


# A dev server's host key: made once per reservation, kept in an owner-only file, the same after every restart.


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
