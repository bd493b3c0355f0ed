"""`up --listen`: serving other machines, decided before anything starts.

Only the TLS listener may use an address that other machines can reach.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpudev.domain.addresses import ListenAddress, is_loopback_host, parse_listen_address
from gpudev.domain.errors import Invalid
from gpudev.embedded.layout import Layout, read_json
from gpudev.embedded.progress_output import StepFailed
from gpudev.ports.clock import SystemClock
from gpudev.settings import Settings

_STEP = "Listening"
_SSH_HOST = "GPU_DEV_SSH_HOST"


def apply_listen_options(
    settings: Settings, listen: str | None, cert: Path | None, key: Path | None, env: Mapping[str, str]
) -> Settings:
    """The settings with the TLS listener's address and certificate. Raises StepFailed."""
    if not is_loopback_host(settings.api_host):
        reason = f"GPU_DEV_API_HOST is {settings.api_host}, but this listener has no TLS"
        raise StepFailed(_STEP, reason, advice="Unset it; `--listen ADDRESS` serves other machines with TLS.")
    settings = replace(
        settings,
        listen=listen if listen is not None else settings.listen,
        tls_cert=_absolute(cert or settings.tls_cert),
        tls_key=_absolute(key or settings.tls_key),
    )
    if not settings.listen:
        if settings.tls_cert is not None or settings.tls_key is not None:
            raise StepFailed(_STEP, "a certificate is given, but no listener", advice="Add --listen ADDRESS.")
        return settings
    try:
        address = parse_listen_address(settings.listen)
    except Invalid as error:
        raise StepFailed(
            _STEP, error.message, advice="For example `--listen 192.0.2.7`, with an address of this machine."
        ) from error
    # Remote users must be able to reach the dev servers too.
    ssh_host = settings.ssh_host if env.get(_SSH_HOST) else address.host
    return replace(settings, listen=str(address), ssh_host=ssh_host)


def check_listening(settings: Settings) -> None:
    """Checks address and certificate before anything is started. Raises StepFailed."""
    if not settings.listen:
        return
    from gpudev.adapters.tls import ensure_certificate  # slow to import, and not needed without a listener

    address = parse_listen_address(settings.listen)
    _check_address(address)
    try:
        files = ensure_certificate(settings, address.host, SystemClock().now())
        files.check()
    except Invalid as error:
        raise StepFailed("Certificate", error.message, advice="Give --tls-cert and --tls-key, or neither.") from error


def describe_listening(settings: Settings) -> dict[str, str | None]:
    """The listener's part of the system file, which `with_running_listener` reads."""
    if not settings.listen:
        return {"listen_url": None, "tls_cert": None, "tls_key": None, "fingerprint": None}
    from gpudev.adapters.tls import ensure_certificate

    address = parse_listen_address(settings.listen)
    files = ensure_certificate(settings, address.host, SystemClock().now())
    return {
        "listen_url": address.url,
        "tls_cert": str(files.certificate),
        "tls_key": str(files.key),
        "fingerprint": files.fingerprint(),
    }


def listen_environment(settings: Settings) -> dict[str, str]:
    variables = {_SSH_HOST: settings.ssh_host}
    if settings.listen:
        variables["GPU_DEV_LISTEN"] = settings.listen
    if settings.tls_cert is not None and settings.tls_key is not None:
        variables |= {"GPU_DEV_TLS_CERT": str(settings.tls_cert), "GPU_DEV_TLS_KEY": str(settings.tls_key)}
    return variables


def with_running_listener(settings: Settings, layout: Layout) -> Settings:
    """The running system's listener and certificate instead of those of this call."""
    match read_json(layout.system_file):
        case {"listen_url": str(url), "tls_cert": str(cert), "tls_key": str(key)}:
            return replace(settings, listen=url.removeprefix("https://"), tls_cert=Path(cert), tls_key=Path(key))
        case _:
            return replace(settings, listen="", tls_cert=None, tls_key=None)


def listen_warnings() -> list[str]:
    if os.geteuid() == 0:
        return []
    return [
        "Note: all dev servers run as the ordinary user who started gpu-dev, so invited users could access your files. "
        "Start it as root to isolate users."
    ]


def _check_address(address: ListenAddress) -> None:
    advice = "Use an address of this machine (see `ip address`) and a free port."
    try:
        family, kind, protocol, _, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(sockaddr)
    except OSError as error:
        raise StepFailed(_STEP, f"cannot listen on {address} ({error.strerror})", advice=advice) from error


def _absolute(path: Path | None) -> Path | None:
    """The services run in another working directory."""
    return None if path is None else path.expanduser().absolute()
