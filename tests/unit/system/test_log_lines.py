"""A log line is one line, and holds no key, whatever came in from outside."""

import json
import logging

import pytest
import structlog

from gpudev.bootstrap.service_runtime import configure_logging
from gpudev.settings import Settings

KEY = "gpudev_" + "Ab3-_xYz" * 5


@pytest.fixture(autouse=True)
def _as_it_was() -> None:
    before = list(logging.getLogger().handlers)
    yield  # type: ignore[misc]
    structlog.reset_defaults()
    for handler in set(logging.getLogger().handlers) - set(before):
        logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_warning_of_a_library_is_one_line_and_its_error_has_a_traceback(
    log_format: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    configure_logging(Settings(log_format=log_format))
    library = logging.getLogger("asyncpg.pool")
    try:
        raise ConnectionRefusedError(111, "Connection refused")
    except ConnectionRefusedError:
        library.warning("cannot open the pool's connections", exc_info=True)
        warning = capfdbinary.readouterr().err.decode()
        library.error("broken", exc_info=True)
        error = capfdbinary.readouterr().err.decode()
    assert warning.count("\n") == 1
    assert "Connection refused" in warning
    assert "Traceback" not in warning
    assert "Traceback" in error


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_came_from_outside_stays_in_its_line_and_keys_stay_out(
    log_format: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    configure_logging(Settings(log_format=log_format))
    log = structlog.get_logger("test")
    log.info("http.request", path=f"/v1/jobs/{KEY}\r\n2026-01-01 root logged in\x1b[2K", user="ada")
    try:
        raise ValueError(f"that is no id: {KEY}")
    except ValueError:
        log.exception("http.unexpected_error")
    written = capfdbinary.readouterr().err.decode()
    assert KEY not in written
    assert KEY[:16] in written, "whose key it was can still be found out"
    assert "\r" not in written
    first = written.splitlines()[0]
    assert "root logged in" in first
    assert "\x1b[2K" not in written
    if log_format == "json":
        assert [json.loads(line)["event"] for line in written.splitlines()] == ["http.request", "http.unexpected_error"]
