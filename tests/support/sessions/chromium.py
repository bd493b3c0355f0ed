"""A person's browser: Debian's Chromium without a window, spoken to by its own protocol."""

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from support.polling import eventually_async

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_program() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Tab:
    def __init__(self, socket: ClientConnection, session: str, numbers: "itertools.count[int]") -> None:
        self._socket = socket
        self._session = session
        self._numbers = numbers

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await ask(self._socket, next(self._numbers), method, parameters, self._session)

    async def evaluate(self, expression: str) -> Any:
        told = await self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return told["result"].get("value")

    async def click(self, selector: str) -> None:
        """As a mouse does, in the middle of it."""
        place = f"document.querySelector('{selector}').getBoundingClientRect()"
        x, y = await self.evaluate(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({place})")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            await self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    async def wait_for(self, expression: str, seconds: float = 90) -> Any:
        """Until it is true; what it is then."""
        if found := await self.find(expression, seconds):
            return found
        shown = await self.evaluate("location.href + '\\n' + document.body.innerText.slice(0, 2000)")
        raise AssertionError(f"{expression} was never true; the page shows: {shown}")

    async def find(self, expression: str, seconds: float) -> Any:
        """What it is as soon as it is true; nothing true where it does not become so in time."""
        deadline = time.monotonic() + seconds
        while not (found := await self.evaluate(expression)) and time.monotonic() < deadline:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.05)
        return found


@asynccontextmanager
async def opened(program: str, folder: Path, url: str) -> AsyncIterator[Tab]:
    process = await asyncio.create_subprocess_exec(
        program,
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "--window-size=1400,1000", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        address = await _address(folder / "DevToolsActivePort", process)
        async with connect(address, max_size=None, proxy=None) as socket:
            numbers = itertools.count(1)
            target = await ask(socket, next(numbers), "Target.createTarget", {"url": "about:blank"})
            attached = await ask(
                socket, next(numbers), "Target.attachToTarget", {"targetId": target["targetId"], "flatten": True}
            )
            tab = Tab(socket, attached["sessionId"], numbers)
            await tab.do("Page.navigate", url=url)
            yield tab
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(
    socket: ClientConnection, number: int, method: str, parameters: dict[str, Any], session: str | None = None
) -> dict[str, Any]:
    """One question at a time; what is told unasked is passed over."""
    question = {"id": number, "method": method, "params": parameters}
    await socket.send(json.dumps(question if session is None else {**question, "sessionId": session}))
    async with asyncio.timeout(60):
        while True:
            told: dict[str, Any] = json.loads(await socket.recv())
            if told.get("id") == number:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result


async def _address(file: Path, process: asyncio.subprocess.Process) -> str:
    def lines_of() -> list[str] | None:
        assert process.returncode is None, "the browser ended at once"
        return _lines_of(file)

    lines = await eventually_async(lines_of, every=0.05)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"


def _lines_of(file: Path) -> list[str] | None:
    lines = file.read_text().splitlines() if file.exists() else []
    return lines if len(lines) == 2 else None
