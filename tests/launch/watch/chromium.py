"""A headless Chromium that tests drive by its DevTools protocol, over two pipes: no driver and no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dps.transport.clock import now

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
ANSWER_S = 60.0


def find_browser() -> str:
    """The path of a Chromium; "" if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


class Tab:
    """One page of a browser."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out, self._rest, self._number = into, out, b"", 0
        self._session = ""
        self.errors: list[str] = []
        """What the pages have logged as errors, and exceptions that none of them caught."""

    def open(self) -> None:
        """Make the page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a call of the protocol. Blocks."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        text = json.dumps({"id": self._number, "method": method, "params": params, **session})
        os.write(self._into, text.encode() + b"\0")
        deadline = now() + ANSWER_S
        while True:
            found = self._receive(deadline)
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._out], [], [], max(0.0, deadline - now()))[0], "Chromium does not answer"
            data = os.read(self._out, 1 << 16)
            assert data, "Chromium has ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(found["params"]["exceptionDetails"]))
        elif found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            self.errors.append(str(found["params"]["entry"]))
        return found

    def go(self, url: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=url)

    def look(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, timeout_s: float = ANSWER_S) -> Any:
        """The value of an expression once it is true. Blocks."""
        deadline = now() + timeout_s
        while not (value := self.look(script)):
            assert now() < deadline, f"not true in time: {script}; errors {self.errors}"
            select.select([], [], [], 0.05)
        return value

    def show_as(self, width: int, height: int, dark: bool) -> None:
        """Take a size, and a scheme of colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, whole: bool = False) -> None:
        """Write a PNG of what is shown, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browsing(folder: Path) -> Iterator[Tab]:
    """A browser with one page, which keeps its files in this folder."""
    to_read, into = os.pipe()
    out, to_write = os.pipe()

    # Chromium reads from descriptor 3 and writes to 4; both ends are moved away from there first.
    shell = f'exec 8<&{to_read} 9>&{to_write}; exec "$0" "$@" 3<&8 4>&9 8<&- 9>&-'
    command = ["bash", "-c", shell, find_browser(), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    environ = {**os.environ, "HOME": str(folder)}
    with subprocess.Popen(
        command, pass_fds=(to_read, to_write), env=environ, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        os.close(to_read)
        os.close(to_write)
        try:
            tab = Tab(into, out)
            tab.open()
            yield tab
        finally:
            os.close(into)
            os.close(out)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
