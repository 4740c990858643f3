"""The process in which ONNX Runtime works: a crash of the provider or of QNN takes down only this."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import asdict
from typing import Any

from ci.engine.workers.child import Answer, Meter, serve
from provisioning.base.errors import ToolkitError


def obey(order: dict[str, Any]) -> dict[str, Any]:
    from ci.onnx import steps
    from ci.onnx.engine import NotOnProvider

    meter = Meter()
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
    return {**made, **meter.read()}


def start() -> Answer:
    importlib.import_module("ci.onnx.steps")

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        # Relative paths, those in options too, mean what they mean to the user.
        os.chdir(order["cwd"])
        return obey(order)

    return answer


if __name__ == "__main__":
    serve(int(sys.argv[1]), start)
