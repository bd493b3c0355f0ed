"""The address of an API, normalized: credentials are stored under it.

Kept apart from the other addresses, because every client command loads it.
"""

from urllib.parse import urlsplit


class InvalidApiUrl(ValueError):
    """`hint`: an example of a valid address, or empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def normalize_api_url(text: str, where: str) -> str:
    """`where`: the option or variable it came from. Raises InvalidApiUrl."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise InvalidApiUrl(f"invalid {where}: {error}") from error
    host = parts.hostname
    spelled = text.strip()
    if parts.scheme not in ("http", "https") or not host or not spelled.isascii() or " " in spelled:
        raise InvalidApiUrl(f"invalid {where} {text[:200]!r}", "Expected e.g. https://gpu.example.com")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidApiUrl(f"{where} should hold scheme, host, port and path alone: {text[:200]!r}")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port is not None else ''}{parts.path.rstrip('/')}"
