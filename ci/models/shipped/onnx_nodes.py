"""A factory for suites: the model of one ONNX operator, from the node tests that the package onnx brings.

`node` is the function that a suite names, with a test and a version of the operators. The lane's limits are
its own: doubles become floats, optional outputs go, and inputs that give infinite outputs are replaced."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase

    from ci.models.inputs import Array

FormalParameterOption = onnx.defs.OpSchema.FormalParameterOption
PACKAGE = "onnx.backend.test.case.node"


def node(test: str, module: str, opset: int, constants: str = "") -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a test's model in this opset, with its inputs; the inputs that `constants` names (A,B) become
    weights of the model."""
    importlib.import_module(f"{PACKAGE}.{module}")
    case = next(case for case in importlib.import_module(PACKAGE)._NodeTestCases if case.name == test)
    model, values = model_of(case, opset, tuple(filter(None, constants.split(","))))
    outputs = outputs_of(case).values()
    if all(value.dtype.kind != "f" or np.isfinite(value).all() for value in outputs):
        return model, values
    # Outputs that are not finite cannot be compared.
    return model, {name: np.nan_to_num(value, posinf=0, neginf=0) for name, value in values.items()}


def model_of(
    case: TestCase, opset: int, constants: tuple[str, ...]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    model, values = onnx.ModelProto(), inputs_of(case)
    assert case.model is not None
    model.CopyFrom(case.model)
    model.opset_import[0].version = opset
    model.ir_version = helper.find_min_ir_version_for(model.opset_import)
    graph = model.graph
    _keep_main_output(graph)
    graph.initializer.extend(numpy_helper.from_array(values.pop(name), name) for name in constants)
    inputs = [value for value in graph.input if value.name in values]
    del graph.input[:]
    graph.input.extend(inputs)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model, values


def _keep_main_output(graph: onnx.GraphProto) -> None:
    """Leave out optional outputs beside the first one: the tests have them all, and models do not."""
    (node,) = graph.node
    formals = onnx.defs.get_schema(node.op_type).outputs
    main_names = {output.name for output in graph.output[:1]}
    for position, name in enumerate(node.output):
        if formals[min(position, len(formals) - 1)].option != FormalParameterOption.Optional:
            main_names.add(name)
    names = [name if name in main_names else "" for name in node.output]
    while not names[-1]:
        names.pop()
    outputs = [output for output in graph.output if output.name in main_names]
    del node.output[:], graph.output[:]
    node.output.extend(names)
    graph.output.extend(outputs)


def inputs_of(case: TestCase) -> dict[str, Array]:
    assert case.model is not None
    assert case.data_sets
    values = (_array(value) for value in case.data_sets[0][0])
    return {info.name: value for info, value in zip(case.model.graph.input, values, strict=True)}


def outputs_of(case: TestCase) -> dict[str, Array]:
    assert case.model is not None
    assert case.data_sets
    values = (_array(value) for value in case.data_sets[0][1])
    return {info.name: value for info, value in zip(case.model.graph.output, values, strict=True)}


def _array(value: object) -> Array:
    """Convert a test's value to an array; doubles become floats, because models have none."""
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array
