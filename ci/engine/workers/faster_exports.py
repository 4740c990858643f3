"""Spare torch what it does again and again: more than half the time of a small model's lowering.

Each of these gives what torch gives. Another torch than the locked one may lack what is replaced here, and is
then as fast as it is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import itertools
import re
import sys
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, cast


def make_exports_faster() -> None:
    for speed_up in (
        _import_no_inductor,
        _collect_operators_once,
        _override_operators_from_memory,
        _share_node_sources,
        _compile_sources_once,
        _write_code_when_it_is_asked_for,
        _check_dynamic_shapes_where_there_are_some,
        _read_options_once,
        _seek_trained_norms_only_where_they_can_be,
        _read_the_vendor_of_the_processor_here,
    ):
        with contextlib.suppress(ImportError, AttributeError):
            speed_up()


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
    """torch asks its dispatcher for all composite operators again for each of some forty namespaces, and no
    operator is registered meanwhile."""
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


def _share_node_sources() -> None:
    """Every pass copies where each node came from, with all of its past. Nothing changes these records."""
    from torch.fx.traceback import NodeSource

    NodeSource.__deepcopy__ = lambda self, memo: self


def _compile_sources_once() -> None:
    """Every pass compiles its graph's Python code again, and nine times of ten nothing in it has changed."""
    from torch.fx import graph_module

    code_of = functools.lru_cache(512)(compile)

    def renamed(code: CodeType, filename: str) -> CodeType:
        """With a name and objects of its own: dynamo remembers what it did by code object."""
        parts = (
            renamed(const, filename) if isinstance(const, CodeType) else const for const in code.co_consts
        )
        return code.replace(co_filename=filename, co_consts=tuple(parts))

    def compile_once(source: str, filename: str, mode: str, **how: bool) -> CodeType:
        return renamed(code_of(source, "", mode, **how), filename)

    graph_module.compile = compile_once


def _write_code_when_it_is_asked_for() -> None:
    """Every pass has its graph's Python code written, and nobody looks at forty-nine of fifty."""
    from torch.fx.graph import _PyTreeCodeGen
    from torch.fx.graph_module import GraphModule

    write = GraphModule.recompile

    class Later:
        """What a module's class has as `forward`, and what `recompile` gives, until either is looked at."""

        def __init__(self, module: Any) -> None:
            self._module, self._code = weakref.ref(module), None

        def write(self) -> Any:
            if self._code is None:
                module = self._module()
                if module is None:
                    raise RuntimeError("the module of this code is gone")
                # Writing asks for the fields that are to be written.
                del type(module).forward
                try:
                    self._code = write(module)
                except Exception as error:
                    type(module).forward = self
                    raise RuntimeError(f"this graph has no code: {error}") from error
            return self._code

        def __getattr__(self, name: str) -> Any:
            return getattr(self.write(), name)

        def __get__(self, module: Any, owner: Any) -> Any:
            self.write()
            return owner.forward if module is None else module.forward

    def write_later(self: Any) -> Any:
        if isinstance(self._graph._codegen, _PyTreeCodeGen):
            info = self._graph._codegen.pytree_info
            self._in_spec, self._out_spec = info.in_spec, info.out_spec
        later = Later(self)
        type(self).forward = later
        self._recompile_submodules()
        return later

    def field(name: str) -> property:
        def get(self: Any) -> Any:
            later = vars(type(self)).get("forward")
            if isinstance(later, Later):
                later.write()
            try:
                return vars(self)[name]
            except KeyError:
                raise AttributeError(name) from None

        return property(get, lambda self, value: vars(self).__setitem__(name, value))

    def written_first(reduce: Callable[..., Any]) -> Callable[..., Any]:
        # It copies the fields before it has the code written.
        return lambda self, *exporter: (self._code, reduce(self, *exporter))[1]

    GraphModule.recompile = write_later
    for name in ("_code", "_lineno_map", "_prologue_start"):
        setattr(GraphModule, name, field(name))
    for name in ("__reduce__", "__reduce_package__"):
        setattr(GraphModule, name, written_first(vars(GraphModule)[name]))


def _check_dynamic_shapes_where_there_are_some() -> None:
    """Every export builds all guards of what it traced, to see whether a dynamic shape contradicts one."""
    from torch._dynamo import functional_export

    check = functional_export._suggest_or_raise_constraint_violation

    def check_if_any(module: Any, original: Any, fake_mode: Any, *rest: Any) -> None:
        shapes = getattr(fake_mode, "shape_env", None)
        if shapes is None or shapes.var_to_range:
            check(module, original, fake_mode, *rest)

    functional_export._suggest_or_raise_constraint_violation = check_if_any


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
