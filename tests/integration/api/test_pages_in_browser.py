"""The pages as a browser shows them, which can reach nothing but the API."""

from pathlib import Path

import pytest

from support.api.harness import Api
from support.api.serving import port_of, serving
from support.sessions import chromium

pytestmark = pytest.mark.slow
# Whatever the policy blocks, and whatever comes from elsewhere.
WATCH = """
window.blocked = [];
document.addEventListener("securitypolicyviolation", event => window.blocked.push(
  event.violatedDirective + " " + event.blockedURI));
"""
ELSEWHERE = "performance.getEntriesByType('resource').map(r => r.name).filter(n => !n.startsWith(location.origin))"


async def test_swagger_shows_the_endpoints_and_loads_nothing_from_elsewhere(api: Api, tmp_path: Path) -> None:
    program = chromium.find_program()
    if program is None:
        pytest.skip("NOT TESTED: there is no Chromium here (Debian's package 'chromium')")
    async with serving(api.app) as server:
        url = f"http://127.0.0.1:{port_of(server)}"
        async with chromium.opened(program, tmp_path / "browser", "about:blank") as tab:
            await tab.do("Page.enable")
            await tab.do("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
            await tab.do("Page.navigate", url=f"{url}/docs")
            await tab.wait_for("document.body && document.body.innerText.includes('/v1/jobs/submit')")
            await tab.click(".opblock-summary-control")
            await tab.wait_for("document.querySelector('.opblock-body') !== null")
            assert [one for one in await tab.evaluate(ELSEWHERE) if not one.startswith("data:")] == []
            assert await tab.evaluate("window.blocked") == []
            await tab.do("Page.navigate", url=url)
            await tab.wait_for("document.title === 'gpu-dev' && document.body.innerText.includes('gpu-dev reserve')")
            assert await tab.evaluate("window.blocked") == []
            await tab.do("Page.navigate", url=f"{url}/nowhere")
            await tab.wait_for("document.title === 'Not found' && document.body.innerText.includes('/nowhere')")
