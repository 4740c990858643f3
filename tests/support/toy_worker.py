"""The work of the toy lane, in its processes; a test may ask for what goes wrong."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from ci.work import reporting


def prepare() -> None:
    """It imports nothing."""


def _compile(order: dict[str, Any]) -> dict[str, Any]:
    width, goes_wrong = order["width"], order["goes_wrong"]
    if width > 90:
        raise ValueError(f"no program is {width} wide")
    if goes_wrong == "full disk":
        raise OSError(28, "No space left on device")
    if goes_wrong == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if goes_wrong == "computes for ever":
        while True:
            pass
    if goes_wrong == "hangs":
        time.sleep(60)
    text = Path(order["text"]).read_text() if order["text"] else "x"
    (Path(order["into"]) / "program").write_text(text * width)
    return {"sqnr_db": 10.0 * width}


def _error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "refused", "message": str(error), "fix": "make it narrower"}


compiled = reporting(_compile, _error_of)
