"""The work of the toy lane, in its processes; a test may ask for what goes wrong when it is done again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ci.child import reporting


def prepare() -> None:
    """It imports nothing."""


def _compile(order: dict[str, Any]) -> dict[str, Any]:
    width, goes_wrong = order["width"], order.get("goes wrong", "")
    count = _count(Path(order["count"])) if goes_wrong else 0
    if width > 90:
        raise ValueError(f"no program is {width} wide")
    if goes_wrong == "fails later" and count > 6:
        raise ValueError("no more")
    if goes_wrong == "full disk" and count > 3:
        raise OSError(28, "No space left on device")
    if goes_wrong == "hangs":
        time.sleep(60)
    width += count % 2 if goes_wrong == "another each time" else 0
    text = "x" * width
    if goes_wrong == "memory":
        text = os.environ.get("MALLOC_PERTURB_") or os.urandom(2).hex()
    (Path(order["into"]) / "program").write_text(text)
    return {"sqnr_db": 10.0 * width}


def _count(file: Path) -> int:
    count = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(count))
    return count


def _error_of(error: Exception, order: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "refused", "message": str(error), "fix": "make it narrower"}


compiled = reporting(_compile, _error_of)
