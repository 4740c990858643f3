"""Stands in for the processes that export and compile: they do what the factory's name says.

A file beside the suite may say something else, which is in no key."""

from __future__ import annotations

import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from ci.models.user_model import search_first
from ci.work.plain import to_json
from tests.support.lowering import compiled_as

FAILS = "fails.txt"


def prepare() -> None:
    """There is nothing to import."""


def export(order: dict[str, Any]) -> dict[str, Any]:
    search_first(Path(order["search_path"]))
    module, _, what = order["case_of_model"]["factory"].partition(":")
    arguments = order["case_of_model"]["arguments"]
    if what == "export_crash":
        print("what it printed", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    made = getattr(importlib.import_module(module), what)(**arguments) if what == "make" else what
    text = made if isinstance(made, int) else str(made)
    with Path(order["search_path"], "exports.txt").open("a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")
    return {"runs": {name: {"rows": {"model": text}} for name in order["runs"]}}


def compiled(order: dict[str, Any]) -> dict[str, Any]:
    print("what it printed")
    file, model = Path(order["search_path"], FAILS), order["case_of_model"]
    what = file.read_text(encoding="utf-8") if file.exists() else model["factory"].partition(":")[2]
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what in ("hang", "spin"):
        while what == "spin" and time.process_time() < 0.4:
            pass
        time.sleep(600)
    elif what == "bad_alloc":
        print("terminate called after throwing an instance of 'std::bad_alloc'", flush=True)
        os.abort()
    elif what == "full":
        Path("/dev/full").write_text("weights")
    elif what == "refuse":
        return {"error": {"kind": "factory", "message": "it is no model", "fix": "", "exit_code": 1}}
    module, _, factory = model["factory"].partition(":")
    made = getattr(importlib.import_module(module), factory)(**model["arguments"])
    content = made if isinstance(made, bytes) else str(made).encode()
    (Path(order["into"]) / "program.pte").write_bytes(content)
    return {**to_json(compiled_as(inputs=((),))), "parent": os.getppid()}
