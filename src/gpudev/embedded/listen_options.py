"""`up --listen`: serving other machines, decided before anything starts.

Nothing but TLS ever listens on an address that others can reach; whoever asks for that otherwise is told how.
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
    """Settings that say where others come in and what certificate they see. Raises StepFailed."""
    if not is_loopback_host(settings.api_host):
        reason = f"GPU_DEV_API_HOST is {settings.api_host}, and what listens there speaks without TLS"
        raise StepFailed(_STEP, reason, advice="Leave it out; `--listen ADDRESS` lets others in, with TLS.")
    settings = replace(
        settings,
        listen=listen if listen is not None else settings.listen,
        tls_cert=_absolute(cert or settings.tls_cert),
        tls_key=_absolute(key or settings.tls_key),
    )
    if not settings.listen:
        if settings.tls_cert is not None or settings.tls_key is not None:
            raise StepFailed(_STEP, "there is a certificate, and nowhere to show it", advice="Add --listen ADDRESS.")
        return settings
    try:
        address = parse_listen_address(settings.listen)
    except Invalid as error:
        raise StepFailed(_STEP, error.message, advice="Say `--listen 192.0.2.7`, with your own address.") from error
    # Dev servers are no use to somebody who cannot reach them.
    ssh_host = settings.ssh_host if env.get(_SSH_HOST) else address.host
    return replace(settings, listen=str(address), ssh_host=ssh_host)


def check_listening(settings: Settings) -> None:
    """That it will work, before anything is started. Raises StepFailed."""
    if not settings.listen:
        return
    from gpudev.adapters.tls import ensure_certificate  # those who let nobody in pay for no cryptography

    address = parse_listen_address(settings.listen)
    _check_address(address)
    try:
        files = ensure_certificate(settings, address.host, SystemClock().now())
        files.check()
    except Invalid as error:
        raise StepFailed("Certificate", error.message, advice="Give --tls-cert and --tls-key, or neither.") from error


def describe_listening(settings: Settings) -> dict[str, str | None]:
    """For whoever wants to find the way in later: see `find_listening`."""
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
    told = {_SSH_HOST: settings.ssh_host}
    if settings.listen:
        told["GPU_DEV_LISTEN"] = settings.listen
    if settings.tls_cert is not None and settings.tls_key is not None:
        told |= {"GPU_DEV_TLS_CERT": str(settings.tls_cert), "GPU_DEV_TLS_KEY": str(settings.tls_key)}
    return told


def with_running_listener(settings: Settings, layout: Layout) -> Settings:
    """Where the running system listens and what it shows there, whatever this call would choose."""
    match read_json(layout.system_file):
        case {"listen_url": str(url), "tls_cert": str(cert), "tls_key": str(key)}:
            return replace(settings, listen=url.removeprefix("https://"), tls_cert=Path(cert), tls_key=Path(key))
        case _:
            return replace(settings, listen="", tls_cert=None, tls_key=None)


def listen_warnings() -> list[str]:
    """What somebody should know who lets others in."""
    if os.geteuid() == 0:
        return []
    return [
        "Note: started by an ordinary user, all dev servers run as that user: whoever you invite could get at what is "
        "yours. Start it as root to keep people apart."
    ]


def _check_address(address: ListenAddress) -> None:
    advice = "Name an address of this machine (`ip address` shows them), and a free port."
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise StepFailed(_STEP, f"nothing can listen on {address} ({error.strerror})", advice=advice) from error


def _absolute(path: Path | None) -> Path | None:
    """Parts run elsewhere than where the command was typed."""
    return None if path is None else path.expanduser().absolute()
