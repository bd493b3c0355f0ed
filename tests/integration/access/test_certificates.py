"""Certificates of our own making, what they show, and how a server is known by its key alone."""

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from gpudev.adapters import tls
from gpudev.adapters.tls import CertificateFiles, ensure_certificate, ensure_self_signed
from gpudev.domain.addresses import is_loopback_host, parse_listen_address
from gpudev.domain.errors import Invalid
from gpudev.sdk.http import certificate_pins
from gpudev.settings import Settings

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
_HERE = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])


def read(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def test_a_self_made_certificate_names_its_host_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    files = ensure_self_signed(tmp_path / "tls", "192.0.2.7", NOW)
    names = read(files).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name) for name in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    assert {path.stat().st_mode & 0o777 for path in (files.certificate, files.key)} == {0o600}
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "tls").iterdir()) == ["certificate.pem", "key.pem"]
    files.check()


def test_it_is_used_again_and_renewed_with_its_key_before_its_end(tmp_path: Path) -> None:
    files = ensure_self_signed(tmp_path, "lab.example.org", NOW)
    first, key, known = files.certificate.read_bytes(), files.key.read_bytes(), files.fingerprint()
    ensure_self_signed(tmp_path, "lab.example.org", NOW + timedelta(days=300))
    assert files.certificate.read_bytes() == first
    late = NOW + tls.VALID_FOR - tls.RENEW_BEFORE
    ensure_self_signed(tmp_path, "lab.example.org", late)
    assert files.certificate.read_bytes() != first
    assert read(files).not_valid_after_utc > late + timedelta(days=300)
    assert (files.key.read_bytes(), files.fingerprint()) == (key, known)


def test_for_another_host_there_is_another_certificate_with_the_same_key(tmp_path: Path) -> None:
    known = ensure_self_signed(tmp_path, "192.0.2.7", NOW).fingerprint()
    files = ensure_self_signed(tmp_path, "192.0.2.8", NOW)
    assert "192.0.2.8" in str(read(files).extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    assert files.fingerprint() == known


def test_half_a_certificate_is_made_anew_and_a_key_is_never_replaced(tmp_path: Path) -> None:
    files = ensure_self_signed(tmp_path, "192.0.2.7", NOW)
    files.certificate.write_bytes(files.certificate.read_bytes()[:100])
    ensure_self_signed(tmp_path, "192.0.2.7", NOW).check()
    files.key.write_text("no key")
    with pytest.raises(Invalid, match="invalid private key"):
        ensure_self_signed(tmp_path, "192.0.2.7", NOW)
    assert files.key.read_text() == "no key"


def test_a_given_certificate_is_used_as_it_is_and_comes_with_its_key(tmp_path: Path) -> None:
    mine, other = ensure_self_signed(tmp_path / "a", "x", NOW), ensure_self_signed(tmp_path / "b", "x", NOW)
    settings = Settings(state_dir=tmp_path, tls_cert=mine.certificate, tls_key=mine.key)
    assert ensure_certificate(settings, "x", NOW) == mine
    with pytest.raises(Invalid, match="set both"):
        ensure_certificate(replace(settings, tls_key=None), "x", NOW)
    with pytest.raises(Invalid, match="invalid certificate"):
        CertificateFiles(mine.certificate, other.key).check()
    with pytest.raises(Invalid):
        CertificateFiles(tmp_path / "none", mine.key).check()
    assert not (tmp_path / "tls").exists()


def test_the_client_finds_the_fingerprint_the_server_told(tmp_path: Path) -> None:
    files = ensure_self_signed(tmp_path, "192.0.2.7", NOW)
    assert certificate_pins.fingerprint_of(read(files).public_bytes(Encoding.DER)) == files.fingerprint()


@pytest.mark.parametrize("kind", ["rsa", "ed25519", "p384", "large"])
def test_keys_of_every_kind_have_the_same_fingerprint_to_both(kind: str, tmp_path: Path) -> None:
    key = {
        "rsa": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "large": lambda: ec.generate_private_key(ec.SECP521R1()),
    }[kind]()
    many = [x509.DNSName(f"host-{number}.example.org") for number in range(100 if kind == "large" else 1)]
    made = (
        x509.CertificateBuilder()
        .subject_name(_HERE)
        .issuer_name(_HERE)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(many), critical=False)
        .sign(key, None if kind == "ed25519" else SHA256())  # type: ignore[arg-type]
    )
    path = tmp_path / "cert.pem"
    path.write_bytes(made.public_bytes(Encoding.PEM))
    assert (
        certificate_pins.fingerprint_of(made.public_bytes(Encoding.DER)) == CertificateFiles(path, path).fingerprint()
    )


@given(st.binary(max_size=200))
def test_what_is_no_certificate_shows_no_key(noise: bytes) -> None:
    assert not certificate_pins.matches_pin(noise, "f" * 43)


def test_every_cut_certificate_shows_no_key(tmp_path: Path) -> None:
    files = ensure_self_signed(tmp_path, "192.0.2.7", NOW)
    whole = ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
    assert certificate_pins.matches_pin(whole, files.fingerprint())
    assert not certificate_pins.matches_pin(None, files.fingerprint())
    assert not any(certificate_pins.matches_pin(whole[:length], files.fingerprint()) for length in range(len(whole)))


# Addresses


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("192.0.2.7", "https://192.0.2.7:7443"),
        ("192.0.2.7:8443", "https://192.0.2.7:8443"),
        ("lab.example.org", "https://lab.example.org:7443"),
        ("2001:db8::7", "https://[2001:db8::7]:7443"),
        ("[2001:db8::7]:8443", "https://[2001:db8::7]:8443"),
    ],
)
def test_where_to_listen_is_read_as_people_write_it(text: str, url: str) -> None:
    assert parse_listen_address(text).url == url
    assert parse_listen_address(str(parse_listen_address(text))) == parse_listen_address(text)


@pytest.mark.parametrize(
    "text",
    ["", ":7443", "0.0.0.0", "::", "[::]:7443", "192.0.2.7:", "192.0.2.7:0", "192.0.2.7:99999", "192.0.2.7:x",
     "300.1.2.3", "1.2.3", "a b", "https://lab", "-x", "lab.example.org/x", "[::1", "*"],
)  # fmt: skip
def test_what_is_no_address_to_come_to_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_listen_address(text)


def test_this_machine_is_told_from_others() -> None:
    assert all(is_loopback_host(host) for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"))
    assert not any(is_loopback_host(host) for host in ("192.0.2.7", "0.0.0.0", "::", "lab", "127.0.0.1.example.org"))
