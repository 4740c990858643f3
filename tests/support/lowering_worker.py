"""Stands in for the process that lowers: does what the factory's name says."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ci.engine.workers.child import serve
from ci.pipeline.models.imports import search_first


def answer(order: dict[str, Any]) -> dict[str, Any]:
    print("what it printed")
    search_first(Path(order["search_path"]))
    module, _, what = order["case"]["factory"].partition(":")
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "hang":
        time.sleep(600)
    elif what == "spin":
        while True:
            pass
    elif what == "bad_alloc":
        print("terminate called after throwing an instance of 'std::bad_alloc'", flush=True)
        os.abort()
    elif what == "full":
        Path("/dev/full").write_text("weights")
    elif what == "refuse":
        return {"error": {"kind": "factory", "message": "it is no model", "fix": "", "exit_code": 1}}
    text = getattr(importlib.import_module(module), what)(**order["case"]["arguments"])
    (Path(order["into"]) / "program.pte").write_text(str(text), encoding="utf-8")
    return {"left": [], "delegates": 1, "parent": os.getppid()}


if __name__ == "__main__":
    serve(int(sys.argv[1]), lambda: answer, forks=True)
