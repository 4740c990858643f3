"""Spare torch's and ExecuTorch's own passes what they do again and again.

Only what a pass keeps for itself is replaced, nothing that a user's code sees or reaches: what judges a model
runs the torch that users run. Done on exactly the versions that tests/integration/test_faster_exports.py
compared; any other torch, torchao or executorch is left alone, and every one with --plain-torch.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
import itertools
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from ci.pipeline.options import PLAIN_TORCH
from provisioning.base.settings import DEFAULT_PROFILE
from provisioning.manifest import load_profile


def make_exports_faster() -> None:
    if os.environ.get(PLAIN_TORCH):
        return
    pinned = load_profile(DEFAULT_PROFILE).packages
    for package, speed_ups in SPEED_UPS.items():
        if _installed(package) == str(pinned[package]):
            for speed_up in speed_ups:
                speed_up()


def _installed(package: str) -> str:
    """Its release, without the part that names a build of it (2.13.0+cpu); empty without it."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


INDUCTOR = "torch._inductor.fx_passes.post_grad"


def _import_no_inductor() -> None:
    """ExecuTorch imports torch's compiler, half a second of its import, for one pass. That has work to do
    only where an operator that writes to its input was traced as a function, and imports it then."""
    importlib.import_module("torch.export")

    def decompose(graph: Any) -> None:
        if any(_concerns_inductor(node) for node in graph.nodes):
            importlib.import_module(INDUCTOR).decompose_auto_functionalized(graph)

    if INDUCTOR not in sys.modules:
        sys.modules[INDUCTOR] = cast("ModuleType", SimpleNamespace(decompose_auto_functionalized=decompose))
        try:
            importlib.import_module("torch.export._remove_auto_functionalized_pass")
        finally:
            del sys.modules[INDUCTOR]


def _concerns_inductor(node: Any) -> bool:
    written = ("auto_functionalized", "auto_functionalized_v2", "control_deps")
    return getattr(node.target, "__name__", "") in written or (node.op == "get_attr" and not node.users)


def _collect_operators_once() -> None:
    """torch asks its dispatcher for all composite operators for each of forty namespaces."""
    import torch
    from torch._export import utils
    from torch._export.utils import _collect_all_valid_cia_ops as collect
    from torch._export.utils import _materialize_cpp_cia_ops as ask
    from torch.export import decomp_utils, exported_program

    def collect_once() -> Any:
        ask()
        utils._materialize_cpp_cia_ops = lambda: None
        try:
            return collect()
        finally:
            utils._materialize_cpp_cia_ops = ask

    for module in (utils, decomp_utils, exported_program):
        module._collect_all_valid_cia_ops = collect_once
    # An annotation that torch evaluates some ten thousand times for each export; typing remembers it.
    torch._ops.Callable = typing.Callable


def _override_operators_from_memory() -> None:
    """Each decomposition registers twenty kernels for each of 500 composite operators, and takes them away
    again. Here they are put back as they were the last time, with this time's decomposition."""
    from torch._C import DispatchKey
    from torch._subclasses.fake_impls import op_implementations_dict as rules
    from torch.export import exported_program
    from torch.export.exported_program import _override_composite_implicit_decomp as override

    composite = DispatchKey.CompositeImplicitAutograd
    known: dict[Any, tuple[dict[Any, Any], dict[Any, Any], Any]] = {}
    """By operator: its kernels before and after, and its rule for tensors without data."""

    @contextlib.contextmanager
    def override_again(decompositions: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
        again: dict[Any, Callable[..., Any]] = {}
        new: dict[Any, Callable[..., Any]] = {}
        for operator, decomposition in decompositions.items():
            same = operator in known and known[operator][0] == operator.py_kernels
            (again if same else new)[operator] = decomposition
        # torch takes a rule away that it did not put there: only the first time differs.
        before = {operator: operator.py_kernels.copy() for operator in new if operator not in rules}
        with override(new):
            for operator, kernels in before.items():
                known[operator] = kernels, operator.py_kernels.copy(), rules[operator]
            try:
                for operator, decomposition in again.items():
                    _, after, rule = known[operator]
                    _replace(operator, {**after, composite: decomposition})
                    rules.setdefault(operator, rule)
                yield
            finally:
                for operator in again:
                    _replace(operator, known[operator][0])
                    rules.pop(operator, None)

    exported_program._override_composite_implicit_decomp = override_again


def _replace(operator: Any, kernels: Mapping[Any, Any]) -> None:
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def _read_options_once() -> None:
    """Each step that takes the options of a backend starts flatc to read them: seven processes a program."""
    from executorch.backends.qualcomm.serialization import qc_schema_serialize

    read_of = functools.lru_cache(64)(qc_schema_serialize._convert_to_object)
    qc_schema_serialize._convert_to_object = lambda *what: copy.deepcopy(read_of(*what))


def _seek_trained_norms_only_where_they_can_be() -> None:
    """Converting a quantized model with a batch norm exports 96 patterns of convolutions that were trained
    quantized, to fold them. All compute a square root, so a graph without one has none of them."""
    import torch
    from torchao.quantization.pt2e import qat_utils
    from torchao.quantization.pt2e.qat_utils import _fold_conv_bn_qat_helper as fold

    def fold_if_any(model: Any, *rest: Any, **named: Any) -> Any:
        any_root = any(node.target is torch.ops.aten.sqrt.default for node in model.graph.nodes)
        qat_utils.itertools.product = itertools.product if any_root else lambda *options: ()
        try:
            return fold(model, *rest, **named)
        finally:
            qat_utils.itertools.product = itertools.product

    qat_utils.itertools = SimpleNamespace(**vars(itertools))
    qat_utils._fold_conv_bn_qat_helper = fold_if_any


def _read_the_vendor_of_the_processor_here() -> None:
    """The first lowering of a process starts another one, which measures the processor for most of a second,
    and takes of that its vendor alone."""
    from executorch.backends.qualcomm.utils import qnn_sdk_setup

    measure = qnn_sdk_setup._read_cpu_vendor

    def read() -> Any:
        try:
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return measure()
        named = re.search(r"^vendor_id\s*:\s*(\S+)$", text, re.MULTILINE)
        return named[1] if named else measure()

    qnn_sdk_setup._read_cpu_vendor = read


SPEED_UPS: Mapping[str, tuple[Callable[[], None], ...]] = {
    "torch": (_import_no_inductor, _collect_operators_once, _override_operators_from_memory),
    "torchao": (_seek_trained_norms_only_where_they_can_be,),
    "executorch": (_read_options_once, _read_the_vendor_of_the_processor_here),
}
