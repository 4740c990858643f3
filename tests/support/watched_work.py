"""Small work done by a real worker in a watched fork, and remembered by a real memo."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.inputs import Roots, search_key
from ci.engine.memo import CachedResult, Memo, WorkDone
from ci.engine.watch import Touched
from ci.engine.workers.parent import Worker, WorkerSpec
from provisioning.base.settings import ROOT

WORKER = """
import importlib, sys
from ci.engine.workers.child import serve

def start():
    def answer(order):
        sys.path[:0] = order["path"]
        if order["into"]:
            with open(order["into"] + "/out.txt", "w") as stream:
                stream.write(str(importlib.import_module(order["module"]).work()))
        return {"value": importlib.import_module(order["module"]).work()}
    return answer

serve(int(sys.argv[1]), start, forks=True)
"""


class Place:
    """A clone of a repository with modules, a worker, and a memo over a store."""

    def __init__(self, folder: Path, store: Path, worker: Worker) -> None:
        self.folder, self.store, self.worker, self.shared_worker = folder, store, worker, worker
        (folder / ".git").mkdir(parents=True)
        self.environ = closed(os.environ)
        self.path = [str(folder)]

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("HERE", str(self.folder)), encoding="utf-8")
        old = time.time() - 100
        os.utime(path, (old, old))
        return path

    def memo(self, **options: Any) -> Memo:
        roots = Roots({"toolkit": ROOT, "suite": self.folder, "python": sys.prefix, "store": self.store})
        return Memo(self.store, "test", roots, environ=self.environ, **options)

    def key(self, memo: Memo, module: str = "net") -> dict[str, Any]:
        return {"module": module, **search_key(memo.roots, self.environ)}

    def do(self, module: str = "net", *, files: bool = False, **options: Any) -> tuple[Any, str]:
        """The result, and why the work was done; empty when it was remembered."""
        memo = self.memo(**options)
        key = self.key(memo, module)
        answer = memo.find(module, key)
        if isinstance(answer, CachedResult):
            memo.close()
            return answer.result["value"], ""
        into = memo.scratch() if files else None
        order = {"module": module, "path": self.path, "into": str(into) if into else ""}
        reply = self.worker.ask(order)
        # What the worker of all tests imported never changes, and is long.
        common = None if self.worker is self.shared_worker else Touched.of(self.worker.touched)
        work = WorkDone(Touched.of(reply["touched"]), common)
        entry = memo.remember(module, key, {"value": reply["value"]}, work, into)
        memo.close()
        return reply["value"], answer.why + (
            f"; not remembered: {entry.not_remembered}" * bool(entry.not_remembered)
        )


def start(logs: Path, environ: Mapping[str, str] | None = None, before: str = "") -> Worker:
    environ = closed(os.environ) if environ is None else environ
    return Worker(WorkerSpec(("-c", before + WORKER), environ, logs, 20, "nothing", "", forks=True))


def later(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
