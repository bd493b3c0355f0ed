"""TLS certificates: creation and renewal of self-signed ones, and fingerprints of keys.

A self-signed certificate is renewed with the same key. Clients that pinned the key's fingerprint therefore still trust
it.
"""

import base64
import hashlib
import os
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpudev.domain.errors import Invalid
from gpudev.settings import Settings

VALID_FOR = timedelta(days=365)
RENEW_BEFORE = timedelta(days=60)
_ALLOWED_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificate: Path
    """The certificate with its chain."""
    key: Path

    def fingerprint(self) -> str:
        """SHA-256 of the public key, in base64url. Raises Invalid."""
        spki = _read_certificate(self.certificate).public_key()
        digest = hashlib.sha256(spki.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def check(self) -> None:
        """Check that the files are usable and belong together. Raises Invalid."""
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def load_into(self, context: ssl.SSLContext) -> None:
        """Effective from the next connection. Raises Invalid; then the context keeps its old certificate."""
        self.check()  # in another context first: a failure half-way would leave this one unusable
        self._load(context)

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise Invalid(f"invalid certificate {self.certificate} or key {self.key}: {reason}") from error

    def stamp(self) -> tuple[int, ...]:
        """A value that changes when the files change. Raises Invalid."""
        try:
            found = [path.stat() for path in (self.certificate, self.key)]
        except OSError as error:
            raise Invalid(f"{error.filename} cannot be read: {error.strerror}") from error
        return tuple(number for stat in found for number in (stat.st_ino, stat.st_mtime_ns, stat.st_size))


def ensure_certificate(settings: Settings, host: str, now: datetime) -> CertificateFiles:
    """The configured certificate, else a self-signed one for this host, which may be created or renewed. Raises
    Invalid."""
    if settings.tls_cert is not None and settings.tls_key is not None:
        return CertificateFiles(settings.tls_cert, settings.tls_key)
    if settings.tls_cert is not None or settings.tls_key is not None:
        raise Invalid("set both GPU_DEV_TLS_CERT (a certificate) and GPU_DEV_TLS_KEY (its key), or neither")
    folder = settings.state_dir / "tls"
    try:
        return ensure_self_signed(folder, host, now)
    except OSError as error:
        raise Invalid(f"no certificate can be created in {folder}: {error.strerror}") from error


def ensure_self_signed(folder: Path, host: str, now: datetime) -> CertificateFiles:
    """This machine's own certificate for this host. It is created if missing, and renewed with the same key if it
    expires soon or is for another host. Raises Invalid for unusable files; never replaces an existing key."""
    files = CertificateFiles(folder / "certificate.pem", folder / "key.pem")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not files.key.exists():
        _write(files.key, _new_key())
    key = _read_key(files.key)
    if not _is_current(files.certificate, key, host, now):
        _write(files.certificate, _self_sign(key, host, now).public_bytes(Encoding.PEM))
    return files


def _is_current(path: Path, key: ec.EllipticCurvePrivateKey, host: str, now: datetime) -> bool:
    if not path.exists():
        return False
    try:
        certificate = _read_certificate(path)
    except Invalid:
        return False  # damaged: it is created again
    return (
        certificate.public_key() == key.public_key()
        and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEW_BEFORE
        and list(_certificate_names(certificate)) == [_general_name(host)]
    )


def _certificate_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | tuple[()]:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()


def _self_sign(key: ec.EllipticCurvePrivateKey, host: str, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-dev")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _ALLOWED_SKEW)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise Invalid(f"invalid private key {path}: {error}; move it away to get a new one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Invalid(f"{path} is not a key of gpu-dev; move it away to get a new one")
    return key


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except (OSError, ValueError, IndexError) as error:
        raise Invalid(f"invalid certificate {path}: {error}") from error


def _write(path: Path, content: bytes) -> None:
    """Atomic, and readable by the owner only."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)


def _no_password() -> str:
    """Without it an encrypted key would prompt for its password on a terminal, and block."""
    return ""
