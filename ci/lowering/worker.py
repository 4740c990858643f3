"""The process that lowers: it imports torch and executorch once and lowers one program after another.

Orders come as JSON lines on stdin, replies go as JSON lines to the descriptor given as the argument; what
libraries print goes to the log of the program at hand.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from ci.delegate.worker import (
    _cpu_seconds,
    _end_with,
    _forget_caches,
    _output_to,
    _reply,
    _reset_peak,
    _status,
)

MEMORY = "QNN_CI_WORKER_MEMORY"
"""Bytes that a worker may have: beyond it an allocation fails here, instead of the machine running out."""


def obey(order: dict[str, Any]) -> dict[str, Any]:
    from ci.lowering.factory import BadFactory, is_memory
    from ci.lowering.lower import Failed, lower
    from ci.lowering.suite import Case, Run

    case = Case.model_validate_json(json.dumps(order["case"]))
    run = Run.model_validate_json(json.dumps(order["run"]))
    _reset_peak()
    began, cpu = time.monotonic(), _cpu_seconds()
    try:
        made = lower(
            case, run, order["soc"], Path(order["search_path"]), Path(order["into"]), Path(order["log"])
        )
    except BadFactory as error:
        return {"fault": "factory", "message": str(error)}
    except Failed as error:
        traceback.print_exc()
        return {"fault": error.step, "message": str(error)}
    except Exception as error:
        traceback.print_exc()
        fault = "memory" if is_memory(error) else "compile"
        return {"fault": fault, "message": f"{type(error).__name__}: {error}"[:2000]}
    return {
        **made,
        "seconds": round(time.monotonic() - began, 3),
        "cpu_seconds": round(_cpu_seconds() - cpu, 3),
        "peak": _status("VmHWM"),
    }


def main(descriptor: int) -> None:
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    faulthandler.enable()
    replies = os.fdopen(descriptor, "w", encoding="utf-8")
    if limit := int(os.environ.get(MEMORY, "0")):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    began = time.monotonic()
    importlib.import_module("ci.lowering.lower")
    gc.collect()
    gc.freeze()
    _reply(replies, {"seconds": round(time.monotonic() - began, 3)})
    with contextlib.suppress(KeyboardInterrupt):
        serve(replies)


def serve(replies: TextIO) -> None:
    import torch

    for line in sys.stdin:
        order = json.loads(line)
        with _output_to(Path(order["log"])):
            reply = obey(order)
        torch.set_grad_enabled(True)
        _forget_caches()
        reply["resident"] = _status("VmRSS")
        _reply(replies, reply)


if __name__ == "__main__":
    main(int(sys.argv[1]))
