"""The processes here train, compile and run models: this says what they import, and how they do an order."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import get_type_hints

from ci.work import UNFORESEEN, read, reporting, to_json
from provisioning.base.errors import INTERNAL, ToolkitError

READING = ("tokenizers", "transformers.models.llama.modeling_llama")
COMPILING = ("torch.onnx", "onnxscript", "onnxruntime.quantization")

ORDERS = {
    "train": ("ci.lanes.llm.tiny", "order_train"),
    "suite": ("ci.lanes.llm.measure", "order_suite"),
    "answer": ("ci.lanes.llm.measure", "order_answer"),
    "rounding": ("ci.lanes.llm.measure", "order_rounding"),
    "genie": ("ci.lanes.llm.measure", "order_genie"),
    "figures": ("ci.lanes.llm.measure", "order_figures"),
    "parts": ("ci.lanes.llm.measure", "order_parts"),
    "compile": ("ci.lanes.llm.contexts", "compile_checkpoint"),
    "lower": ("ci.lanes.llm.executorch", "compile_checkpoint"),
}
"""Maps what an order is to do to a function from its dataclass to the reply's."""


def train() -> None:
    """Import what training needs, without the modules that judge: a change of those does not train again."""
    _prepare(READING, ["train"])


def generate() -> None:
    _prepare((*READING, *COMPILING), set(ORDERS) - {"train", "lower"})
    importlib.import_module("ci.suite.onnx_runtime").load()


def lower() -> None:
    _prepare(READING, set(ORDERS) - {"train", "compile"})


def _prepare(libraries: Iterable[str], orders: Iterable[str]) -> None:
    import torch

    # A fork can have threads of its own only if this process never had any.
    torch.set_num_threads(1)
    # transformers would import it to decode with a second model, in a third of its own time.
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    for name in (*libraries, *sorted({ORDERS[order][0] for order in orders})):
        importlib.import_module(name)
    del sys.modules["sklearn"]


def facts_of(order: Mapping[str, object]) -> dict[str, object]:
    module, name = ORDERS[str(order["do"])]
    function = getattr(importlib.import_module(module), name)
    return to_json(function(read(get_type_hints(function)["order"], order)))


def error_of(error: Exception, order: Mapping[str, object]) -> dict[str, object]:
    if isinstance(error, ToolkitError):
        sys.stdout.write(error.output)
        return {"kind": "refused", "message": error.message, "fix": error.fix, "exit_code": error.exit_code}
    message = f"{order['do']}: {type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    fix = f"the traceback is in {order['log']}"
    return {"kind": UNFORESEEN, "message": message, "fix": fix, "exit_code": INTERNAL}


answer = reporting(facts_of, error_of)
