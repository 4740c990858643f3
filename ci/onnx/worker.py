"""The process in which ONNX Runtime works: a crash of the provider or of QNN takes down only this.

Orders come as JSON lines on stdin, replies go as JSON lines to the descriptor given as the argument; what
libraries print goes to the log that the order names.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import sys
import threading
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from ci.delegate.worker import _cpu_seconds, _end_with, _output_to, _reply, _reset_peak, _status
from provisioning.errors import ToolkitError


def obey(order: dict[str, Any]) -> dict[str, Any]:
    from ci.onnx import steps
    from ci.onnx.engine import NotOnProvider

    _reset_peak()
    cpu = _cpu_seconds()
    try:
        made = steps.ORDERS[order["do"]](order)
    except ToolkitError as error:
        traceback.print_exc()
        fault: dict[str, Any] = {
            "kind": type(error).__name__,
            "exit_code": error.exit_code,
            "message": error.message,
            "remedy": error.remedy,
        }
        if isinstance(error, steps.NotCompilable):
            fault["problems"] = [asdict(problem) for problem in error.problems]
        if isinstance(error, NotOnProvider):
            fault["audit"] = asdict(error.audit)
        return {"fault": fault}
    except Exception as error:
        traceback.print_exc()
        last = " ".join(str(error).split())[:1000]
        return {
            "fault": {
                "kind": "Unforeseen",
                "exit_code": 1,
                "message": f"{order['do']}: {type(error).__name__}: {last}",
                "remedy": f"the traceback is in {order['log']}; python -m ci diagnose explains QNN's codes",
            }
        }
    return {**made, "cpu_seconds": round(_cpu_seconds() - cpu, 3), "peak": _status("VmHWM")}


def main(descriptor: int) -> None:
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    faulthandler.enable()
    replies = os.fdopen(descriptor, "w", encoding="utf-8")
    importlib.import_module("ci.onnx.steps")
    _reply(replies, {})
    with contextlib.suppress(KeyboardInterrupt):
        serve(replies)


def serve(replies: TextIO) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        # Relative paths, those in options too, mean what they mean to the user.
        os.chdir(order["cwd"])
        with _output_to(Path(order["log"])):
            reply = obey(order)
        reply["resident"] = _status("VmRSS")
        _reply(replies, reply)


if __name__ == "__main__":
    main(int(sys.argv[1]))
