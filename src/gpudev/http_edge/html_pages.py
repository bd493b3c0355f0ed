"""HTML pages for people: one layout, light and dark. They load nothing, so they need no other host and no script."""

import base64
import hashlib
import html
from collections.abc import Iterable

from starlette.responses import HTMLResponse

_STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 42rem; margin: 4rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .5rem; }
pre { padding: 1rem; overflow-x: auto; border-radius: .4rem; background: rgb(127 127 127 / 15%); }
a { color: LinkText; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def wants_html(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Browsers name HTML when they open a page. Scripts and programs do not, unless they want it."""
    return any(name == b"accept" and b"text/html" in value for name, value in headers)


def html_page(title: str, body: str, status: int = 200, *, refresh: str | None = None) -> HTMLResponse:
    """`title` is text, `body` HTML. `refresh`: after how many seconds the browser loads which address."""
    reload = f'<meta http-equiv="refresh" content="{html.escape(refresh)}">' if refresh else ""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">{reload}<title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>{body}</body></html>"
    )
    return HTMLResponse(page, status, dict(PAGE_HEADERS))


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"
