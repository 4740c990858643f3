"""The plain test of each operator of ONNX's opset, chosen from the installed onnx.

The rule: of the node tests that hold the operator alone and tensors of numbers alone, those whose first
input is floats come first, then those with usual types (float32, int32, int64, bool), with finite values,
with fewer inputs and fewer attributes, and then those with more elements, up to MOST. The first one counts
whose outputs ONNX Runtime's CPU gives, in the first opset from the lane's own on.
manifests/onnx_tests.toml overrides the choice.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, defs

from ci.lanes.onnx.preparation import OPSET
from ci.models.inputs import Array
from ci.models.shipped.onnx_nodes import PACKAGE, inputs_of, model_of, outputs_of
from lab.onnx_operators.node_tests import CHOSEN, Chosen, NodeTests
from lab.onnx_operators.suite import RULES, Rules, rules
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed
from provisioning.base.files import replace_text

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase
    from onnx.defs import OpSchema

MOST = 4096
"""Larger tests say no more, and take longer."""
FATAL_ONLY = 4
CONSTANT = "no inputs but constants"
USUAL = {TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}
NUMBERS = {
    *USUAL,
    *(TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.INT16),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
}
TENSORS = {f"tensor({name})" for name in ("float", "double", "float16", "bool")}
TENSORS |= {f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Test:
    module: str
    case: TestCase
    number: int

    @property
    def node(self) -> onnx.NodeProto:
        return self.case.model.graph.node[0]

    @property
    def plain(self) -> bool:
        """One node, and values that are tensors of numbers. Only inputs after the first may be empty."""
        model, name = self.case.model, self.case.name
        if model is None or "_expanded" in name or len(model.graph.node) != 1 or self.node.domain:
            return False
        values, others = [*model.graph.input, *model.graph.output], [*model.graph.input[1:]]
        return all(
            value.type.WhichOneof("value") == "tensor_type"
            and value.type.tensor_type.elem_type in NUMBERS
            and (value in others or all(size.dim_value for size in value.type.tensor_type.shape.dim))
            for value in values
        )

    @property
    def rank(self) -> tuple[object, ...]:
        """The plainest first."""
        assert self.case.model is not None
        graph = self.case.model.graph
        types = [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)]
        values = list(inputs_of(self.case).values())
        floats = [value for value in (*values, *outputs_of(self.case).values()) if value.dtype.kind == "f"]
        finite = all(np.isfinite(value).all() for value in floats)
        elements = sum(value.size for value in values)
        return (
            types[0] not in (TensorProto.FLOAT, TensorProto.DOUBLE),
            sum(kind not in USUAL for kind in types),
            not finite,
            len(graph.input),
            len(self.node.attribute),
            elements > MOST,
            -elements,
            self.number,
        )


def chosen_tests() -> NodeTests:
    table, by_operator = rules(), defaultdict(list)
    for test in _all_tests():
        if test.plain:
            by_operator[test.node.op_type].append(test)
    by_hand = {name: reason for reason, names in table.left_out.items() for name in names}
    operators: dict[str, Chosen] = {}
    left_out: dict[str, str] = {}
    for schema in sorted(_schemas(), key=lambda operator: str(operator.name)):
        reason = by_hand.get(schema.name) or _cannot(schema)
        chosen = reason or _choice(schema, by_operator[schema.name], table)
        if isinstance(chosen, str):
            left_out[schema.name] = chosen
        else:
            operators[schema.name] = chosen
    unused = [
        name for name, test in table.test.items() if name not in operators or operators[name].test != test
    ]
    if unused := sorted([*unused, *(by_hand.keys() - left_out.keys())]):
        message = f"{RULES} names what this onnx does not have: {', '.join(unused)}"
        fix = "name another test or operator of the installed onnx, or remove the line"
        raise CheckFailed(message, fix=fix)
    return NodeTests.model_validate(
        {
            "schema": 1,
            "onnx": importlib.metadata.version("onnx"),
            "onnxruntime": importlib.metadata.version("onnxruntime"),
            "opset": defs.onnx_opset_version(),
            "operators": operators,
            "left_out": left_out,
        }
    )


def _schemas() -> Iterator[OpSchema]:
    yield from (schema for schema in defs.get_all_schemas() if not schema.domain and not schema.deprecated)


def _all_tests() -> Iterator[Test]:
    package = importlib.import_module(PACKAGE)
    with warnings.catch_warnings():
        # The tests divide by zero and overflow on purpose.
        warnings.simplefilter("ignore")
        for module in sorted(
            module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg
        ):
            before = len(package._NodeTestCases)
            importlib.import_module(f"{PACKAGE}.{module}")
            for number in range(before, len(package._NodeTestCases)):
                yield Test(module, package._NodeTestCases[number], number)


def _cannot(schema: OpSchema) -> str:
    """Why no test of it can be measured; empty if one may."""
    if any(attribute.type == defs.OpSchema.AttrType.GRAPH for attribute in schema.attributes.values()):
        return "control flow"
    if "seed" in schema.attributes and "training_mode" not in {input_.name for input_ in schema.inputs}:
        return "random numbers"
    if not schema.inputs:
        return CONSTANT
    values = [*schema.inputs[:1], *schema.outputs[:1]]
    if not all(TENSORS.intersection(value.types) for value in values):
        return "strings, sequences or optionals"
    return ""


def _choice(schema: OpSchema, found: Sequence[Test], table: Rules) -> Chosen | str:
    by_hand = table.test.get(schema.name)
    why = "no node test with only numeric tensors of fixed sizes"
    for test in sorted(found, key=lambda row: (row.case.name != by_hand, row.rank)):
        constants = _constants(schema, test, table)
        if len(constants) == len(inputs_of(test.case)):
            why = CONSTANT
        elif opset := _opset(schema, test):
            return Chosen(test=test.case.name, module=test.module, opset=opset, constants=constants)
        else:
            why = "ONNX Runtime's CPU does not give the results that its tests expect, in any supported opset"
    return why


def _constants(schema: OpSchema, test: Test, table: Rules) -> tuple[str, ...]:
    """Inputs after the first that are no data in a real model: integers of another type than the data's, such
    as axes and shapes; single numbers, such as limits; empty tensors; and weights."""
    first, names = schema.inputs[0], []
    values = inputs_of(test.case)
    for position, name in enumerate(test.node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if not name or not position or formal is first:
            continue
        value = values[name]
        if value.dtype.kind != "f":
            constant = not value.size or formal.type_str != first.type_str
        else:
            weights = (*table.weights, *(table.biases if position > 1 else ()))
            constant = value.size <= 1 or not {formal.name, f"{schema.name}.{formal.name}"}.isdisjoint(
                weights
            )
        if constant:
            names.append(name)
    return tuple(names)


def _opset(schema: OpSchema, test: Test) -> int:
    """The first one in which the CPU gives what the test expects; 0 if there is none."""
    for opset in range(OPSET, defs.onnx_opset_version() + 1):
        if defs.has(schema.name, opset) and _computes(test, opset):
            return opset
    return 0


def _computes(test: Test, opset: int) -> bool:
    model, values = model_of(test.case, opset, ())
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        outputs = session.run(names, values)
    except Exception:
        return False
    expected = outputs_of(test.case)
    return all(
        expected[name].shape == output.shape
        and np.allclose(expected[name], output, rtol=1e-3, atol=_tolerance(expected[name]), equal_nan=True)
        for name, output in zip(names, outputs, strict=True)
    )


def _tolerance(expected: Array) -> float:
    """For numbers near zero beside large ones."""
    finite = np.abs(expected[np.isfinite(expected)])
    return 1e-5 * float(finite.max()) if expected.dtype.kind == "f" and finite.size else 0.0


def write_choice(*, check: bool) -> int:
    text = chosen_tests().to_json()
    if CHOSEN.is_file() and CHOSEN.read_text(encoding="utf-8") == text:
        return 0
    if check:
        message = f"stale: {CHOSEN}"
        raise CheckFailed(message, fix=Fix("{}, then {}", session("lab", "onnx_operators"), ("generate",)))
    replace_text(CHOSEN, text)
    print(f"wrote {CHOSEN}; `{session('generate')}` writes the suite")
    return 0
