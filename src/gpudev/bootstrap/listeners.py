"""HTTP listeners: the main server, and the TLS listener for other machines.

A certificate that is replaced on disk, or a self-signed one that is renewed, is loaded without a restart.
"""

import asyncio
import contextlib
import copy
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType

import structlog
import uvicorn

from gpudev.adapters.tls import CertificateFiles, ensure_certificate
from gpudev.domain.addresses import ListenAddress, parse_listen_address
from gpudev.domain.errors import Invalid, Unavailable
from gpudev.ports.clock import Clock, SystemClock
from gpudev.settings import Settings

# Listening sockets.


_BACKLOG = 2048


def bind_socket(address: ListenAddress) -> socket.socket:
    """Raises Unavailable if the address cannot be bound."""
    try:
        family, kind, protocol, _, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Unavailable(f"{address.host} is not an address of this machine: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(sockaddr)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen on {address}: {error.strerror}") from error
    return listener


RELOAD_CHECK_SECONDS = 60.0
log = structlog.get_logger()


class ServedCertificate:
    """The certificate that the TLS listener serves, reloaded from its files."""

    def __init__(self, settings: Settings, address: ListenAddress, clock: Clock) -> None:
        """Raises Invalid for unusable files."""
        self._settings = settings
        self._address = address
        self._clock = clock
        self.files = ensure_certificate(settings, address.host, clock.now())
        self._stamp = self.files.stamp()

    def reload_if_changed(self, context: ssl.SSLContext) -> bool:
        """Whether a new certificate was loaded. Raises Invalid; the previous one is then still served."""
        files = ensure_certificate(self._settings, self._address.host, self._clock.now())
        stamp = files.stamp()
        if stamp == self._stamp:
            return False
        files.load_into(context)
        self.files, self._stamp = files, stamp
        return True


@contextlib.asynccontextmanager
async def serve_tls_listener(
    config: uvicorn.Config, settings: Settings, clock: Clock | None = None, every: float = RELOAD_CHECK_SECONDS
) -> AsyncIterator[ListenAddress | None]:
    """Serves the same app on the configured TLS address. None: no such address is configured."""
    if not settings.listen:
        yield None
        return
    address = parse_listen_address(settings.listen)
    certificate = ServedCertificate(settings, address, clock or SystemClock())
    secure = _with_tls(config, certificate.files)
    assert isinstance(secure.ssl, ssl.SSLContext)
    listener = bind_socket(address)
    server = SecondaryServer(secure)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reloading = asyncio.create_task(_reload_loop(certificate, secure.ssl, every))
    log.info("api.listening", address=str(address), fingerprint=certificate.files.fingerprint())
    try:
        yield address
    finally:
        reloading.cancel()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await reloading
        await serving
        listener.close()


class SecondaryServer(uvicorn.Server):
    """Runs beside a service's main server, which handles the signals. Its caller stops it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _with_tls(config: uvicorn.Config, files: CertificateFiles) -> uvicorn.Config:
    """The same configuration with TLS."""
    secure = copy.copy(config)
    files.check()  # raises a readable error
    secure.ssl_certfile, secure.ssl_keyfile = str(files.certificate), str(files.key)
    secure.loaded = False  # also after the main server has begun
    secure.load()
    return secure


async def _reload_loop(certificate: ServedCertificate, context: ssl.SSLContext, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            if await asyncio.to_thread(certificate.reload_if_changed, context):
                log.info("api.new_certificate", fingerprint=certificate.files.fingerprint())
        except Invalid as error:
            log.warning("api.certificate_unusable", error=error.message)


# Graceful shutdown.


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class GracefulServer(uvicorn.Server):
    """uvicorn's own server raises the signal again after it has stopped. That would kill the process before its
    dependencies are closed, and lose audit entries on a clean stop."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], object] = lambda: None) -> None:
        """`on_stop` is called as soon as the server is told to stop: what never ends by itself has to end then."""
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_stop()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
