"""The process that lowers: it imports torch and executorch once and lowers one program after another."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from ci.engine.workers.child import Answer, Meter, forget_torch, serve

MEMORY = "QNN_CI_WORKER_MEMORY"
"""Bytes that a worker may have: beyond it an allocation fails here, instead of the machine running out."""


def obey(order: dict[str, Any]) -> dict[str, Any]:
    from ci.executorch.lower import Failed, lower
    from ci.executorch.suite import Case, Run
    from ci.suites.factory import BadFactory, is_memory

    case = Case.model_validate_json(json.dumps(order["case"]))
    run = Run.model_validate_json(json.dumps(order["run"]))
    meter = Meter()
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
    return {**made, **meter.read()}


def start() -> Answer:
    if limit := int(os.environ.get(MEMORY, "0")):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    importlib.import_module("ci.executorch.lower")
    import torch

    def answer(order: dict[str, Any]) -> dict[str, Any]:
        reply = obey(order)
        torch.set_grad_enabled(True)
        forget_torch()
        return reply

    return answer


if __name__ == "__main__":
    serve(int(sys.argv[1]), start)
