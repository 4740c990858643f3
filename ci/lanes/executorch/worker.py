"""What the processes that lower do: one imports torch and executorch, and its forks export and compile."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils
from executorch.exir import ExecutorchBackendConfig
from torch import Tensor, nn

from ci.child import WARM, Answer, hidden, reporting
from ci.lanes.executorch import graphs
from ci.lanes.executorch.export import ChipModel, error_of
from ci.lanes.executorch.lower import SEGMENT_ALIGNMENT, lower, quantize
from ci.lanes.executorch.lower import scored as scores_of
from ci.lanes.executorch.records import (
    CompileRequest,
    DivergenceRequest,
    QuantizeRequest,
    RewriteRequest,
    ScoreRequest,
    ScriptRequest,
    WrapRequest,
)
from ci.plain import as_json, read, reader
from ci.suite.programs import ProgramOrder
from provisioning.base.findings import Metric
from provisioning.base.settings import ROOT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R")

IMPORTED_LATE = (
    "executorch.backends.qualcomm._passes.backends.htp.qnn_htp_pass_manager",
    "executorch.backends.qualcomm.quantizer.annotators.htp_rules",
    "torch._export.serde.serialize",
    "torch.export._trace",
    "ci.models.exported",
)
"""What torch, executorch and our work import while they lower, which each fork would do again. Releases
differ in them."""

OPERATOR = "context"
"""The name of a context binary in the program that it becomes."""


def prepare() -> None:
    # A fork can have threads of its own only if this process never had any; and by one number of them a
    # model's outputs are the same everywhere.
    torch.set_num_threads(1)
    # ExecuTorch turns some of torch's kernels off when it lowers: what runs before it would have other last
    # bits than what runs after.
    if choose := getattr(utils, "disable_mkldnn_on_amd", None):
        choose()
    for name in IMPORTED_LATE:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if hidden.get(WARM):
        _warm_up()


def small_model() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    return layers.eval(), (torch.rand(1, 3, 8, 8),)


def _warm_up() -> None:
    """Lower a small model, so that libraries are loaded and compilers warm."""
    case: dict[str, Metric] = {"factory": f"{__name__}:{small_model.__name__}"}
    order = ProgramOrder(case, {"precision": "8a8w", "calibration": 1}, "SM8650", str(ROOT), str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        lower(ChipModel.of(order), CompileRequest(Path(folder), log))


_order_of = reader(ProgramOrder)


def _of_model(kind: type[R], work: Callable[[ChipModel, R], DataclassInstance]) -> Answer:
    """Work on a case's model. Relative paths of the user's code begin in its suite's folder."""
    request_of = reader(kind)

    def answer(request: Mapping[str, object]) -> dict[str, object]:
        order = _order_of(request)
        os.chdir(order.working_folder)
        return as_json(work(ChipModel.of(order), request_of(request)))

    return reporting(answer, error_of)


compiled = _of_model(CompileRequest, lower)
quantized = _of_model(QuantizeRequest, quantize)
scored = _of_model(ScoreRequest, scores_of)
diverged = _of_model(DivergenceRequest, graphs.diverge)
script = _of_model(ScriptRequest, graphs.script)
rewritten = _of_model(RewriteRequest, graphs.rewritten)


def _wrapped(order: Mapping[str, object]) -> dict[str, object]:
    request = read(WrapRequest, order)
    bundle = utils.from_context_binary(request.context, OPERATOR, QcomChipset[request.soc])
    config = ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT)
    request.path.write_bytes(bundle["edge_program_manager"].to_executorch(config).buffer)
    return {}


wrapped = reporting(_wrapped, error_of)
