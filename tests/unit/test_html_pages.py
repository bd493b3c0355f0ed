"""Pages for people: they need no other host, and what they serve of others is what was published."""

import base64
import gzip
import hashlib
import re
from importlib.resources import files

import pytest

from gpudev.domain.errors import Forbidden, Unavailable
from gpudev.http_edge.html_pages import PAGE_HEADERS, html_page, wants_html
from gpudev.proxy.jupyter.http_proxy import jupyter_error_response

SWAGGER_UI_5_34_1 = {
    "swagger-ui-bundle.js": "36eeb4d5640b9c036b1d0f854499af1cceebbdb260b790a03a18be5e8488fbf5",
    "swagger-ui.css": "c3cfe8248c4b0b89673600fb829924eafbac6de4bc4b2b06f5f5243483074d0a",
}


@pytest.mark.parametrize("name", SWAGGER_UI_5_34_1)
def test_swagger_ui_is_served_as_it_was_published(name: str) -> None:
    content = gzip.decompress((files("gpudev.api") / "static" / f"{name}.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == SWAGGER_UI_5_34_1[name]


def test_a_pages_style_is_the_only_one_that_its_policy_allows() -> None:
    page = bytes(html_page("a title", "<p>text</p>").body).decode()
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "prefers-color-scheme" in page or "color-scheme: light dark" in page


def test_a_title_is_text() -> None:
    assert b"<script>" not in html_page("<script>", "").body


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [(b"text/html,application/xhtml+xml,*/*;q=0.8", True), (b"application/json", False), (b"*/*", False)],
)
def test_only_browsers_get_pages(accept: bytes, wanted: bool) -> None:
    assert wants_html([(b"host", b"x"), (b"accept", accept)]) is wanted


def test_the_page_of_a_jupyter_that_still_starts_loads_itself_again() -> None:
    page = jupyter_error_response(Unavailable("Jupyter does not answer"), "id", as_page=True)
    assert page.status_code == 503
    assert b'http-equiv="refresh" content="3"' in page.body
    assert page.headers["x-request-id"] == "id"


def test_a_page_that_denies_access_does_not_load_itself_again() -> None:
    page = jupyter_error_response(Forbidden("<b>no"), "id", as_page=True)
    assert b"refresh" not in page.body
    assert b"&lt;b&gt;no" in page.body
