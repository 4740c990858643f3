"""A headless Chromium, spoken to over its debugging pipe: open a page, ask it, change how it is seen."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Page:
    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._pending, self._number = write, read, b"", 0
        self.troubles: list[str] = []
        """Console errors, exceptions, and requests for anything but the page itself."""
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, fragment: str = "") -> None:
        self.url = path.absolute().as_uri()
        self.call("Page.navigate", {"url": self.url + fragment})
        self._until("Page.loadEventFired")

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def seen_as(self, *, width: int, dark: bool = False) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._ask(method, parameters or {}, session=self._session)

    def _ask(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _until(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            block = os.read(self._read, 1 << 16)
            assert block, "chromium went away"
            self._pending += block
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.troubles.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.troubles.append(str(told["entry"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.troubles.append(str(told["args"]))
        elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(self.url):
            self.troubles.append(f"request for {told['request']['url']}")


@contextmanager
def page() -> Iterator[Page]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert program, "these tests look at the page in Chromium: apt-get install chromium"
    to_it, ours_out = os.pipe()
    ours_in, from_it = os.pipe()
    theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 64) for each in (to_it, from_it)]
    os.close(to_it)
    os.close(from_it)

    def wire() -> None:
        os.dup2(theirs[0], 3)
        os.dup2(theirs[1], 4)

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={home}"],
            preexec_fn=wire,
            pass_fds=[3, 4],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in theirs:
            os.close(each)
        try:
            yield Page(ours_out, ours_in)
        finally:
            process.terminate()
            process.wait(30)
            os.close(ours_out)
            os.close(ours_in)
