"""A headless browser for the tests of pages, driven through a pipe: no further package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
KEYS = {"Enter": 13, "Tab": 9, " ": 32, "Escape": 27}
KEYS |= {f"Arrow{side}": 37 + i for i, side in enumerate(("Left", "Up", "Right", "Down"))}


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; without one the tests of pages are skipped."""
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium here; `make browser` installs one on Debian and Ubuntu")
    running = Browser(path, tmp_path_factory.mktemp("browser"))
    yield running
    running.close()


class Browser:
    """The DevTools protocol over the two pipes that Chromium reads and writes."""

    def __init__(self, path: str, folder: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (ours[0], theirs[1])]

        def connect() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [path, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
        )
        for fd in (ours[0], theirs[1], *ends):
            os.close(fd)
        self.out, self.into = ours[1], theirs[0]
        self.buffer, self.number = b"", 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                found: dict[str, Any] = answer["result"]
                return found

    def receive(self, seconds: float = 60.0) -> dict[str, Any]:
        """The next message; events are kept."""
        until = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self.into, 1 << 20) if ready else b""
            assert piece, "the browser does not answer"
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path, width: int = 1200, scripts: bool = True) -> Page:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.resize(width)
        page.send("Page.navigate", url=path.as_uri())
        while not page.events("Page.loadEventFired"):
            self.receive()
        return page

    def close(self) -> None:
        try:
            self.send("Browser.close")
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.out)
            os.close(self.into)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def events(self, *names: str) -> list[dict[str, Any]]:
        own = [e for e in self.browser.events if e.get("sessionId") == self.session]
        return [event["params"] for event in own if event["method"] in names]

    def complaints(self) -> list[dict[str, Any]]:
        """Everything that the console shows."""
        return self.events("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")

    def run(self, expression: str) -> Any:
        done = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key)
        more: dict[str, Any] = {} if text is None else {"text": text}
        names = {"key": key, "code": "Space" if key == " " else key}
        names["windowsVirtualKeyCode"] = KEYS[key]  # type: ignore[assignment]
        self.send("Input.dispatchKeyEvent", type="keyDown", **names, **more)
        self.send("Input.dispatchKeyEvent", type="keyUp", **names)

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Where it is, with the mouse."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def place(self, selector: str) -> tuple[float, float]:
        """Where the middle of an element is, once it is in sight."""
        x, y = self.run(
            f"""(async () => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: "center"}});
            for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        return x, y

    def resize(self, width: int, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def pdf(self) -> bytes:
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])
