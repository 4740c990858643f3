"""Write a recurrent layer of ONNX as its cells: for each step and direction the products, sums and
activations of one GRU or LSTM cell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ci.explain.onnx_rewriting import OnnxMatch, RepairedOnnx, Writer, attributes_of, variables_of
from ci.models.inputs import Array

INPUT, WEIGHTS, STATE_WEIGHTS, BIASES, LENGTHS, FIRST_OUTPUT, FIRST_MEMORY, PEEPHOLES = range(8)
"""A GRU and an LSTM have these inputs in this order; a GRU ends at FIRST_OUTPUT."""
UNUSUAL = ("activations", "clip", "input_forget", "layout")
"""No cell is written for a layer with one of these attributes."""


@dataclass(frozen=True)
class _Cell(ABC):
    """Writes one step of a layer. A state is the names of tensors: the output first, and an LSTM's memory
    behind it."""

    put: Writer
    size: int
    """The number of values that each gate gives."""

    @abstractmethod
    def step(self, of_input: str, of_state: str, state: Sequence[str]) -> list[str]:
        """Write the next state, from the products of the input and of the state with all gates' weights."""

    def _part(self, gates: str, number: int) -> str:
        """Write the part of a product that one gate has."""
        ends = (number * self.size, (number + 1) * self.size, 1)
        return self.put("Slice", gates, *(self.put.constant([end], np.int64) for end in ends))

    def _sum(self, of_input: str, of_state: str, number: int) -> str:
        return self.put("Add", self._part(of_input, number), self._part(of_state, number))


class _LstmCell(_Cell):
    def step(self, of_input: str, of_state: str, state: Sequence[str]) -> list[str]:
        put = self.put
        enter, leave, forget = (put("Sigmoid", self._sum(of_input, of_state, number)) for number in range(3))
        new = put("Tanh", self._sum(of_input, of_state, 3))
        memory = put("Add", put("Mul", forget, state[1]), put("Mul", enter, new))
        return [put("Mul", leave, put("Tanh", memory)), memory]


class _GruCell(_Cell):
    def step(self, of_input: str, of_state: str, state: Sequence[str]) -> list[str]:
        put = self.put
        update, reset = (put("Sigmoid", self._sum(of_input, of_state, number)) for number in range(2))
        old = put("Mul", reset, self._part(of_state, 2))
        new = put("Tanh", put("Add", self._part(of_input, 2), old))
        change = put("Mul", update, put("Sub", state[0], new))
        return [put("Add", new, change)]


@dataclass(frozen=True)
class _Layer:
    """Holds what a GRU or LSTM node says. Arrays and first states have a row for each direction."""

    is_lstm: bool
    input: str
    steps: int
    batch: int
    size: int
    weights: Array
    state_weights: Array
    biases: Array | None
    first_state: Sequence[str]
    """They are names of tensors; an empty name stands for zeros."""
    direction: str
    output_count: int

    def write(self, put: Writer) -> list[str]:
        """Write the layer, and return its output of all steps, and the last state."""
        outputs, last_states = [], []
        for way in range(len(self.weights)):
            output, last_state = self._write_direction(put, way)
            outputs.append(output)
            last_states.append(last_state)
        first_axis = put.constant([0], np.int64)
        by_step = []
        for step in range(self.steps):
            by_step.append(_stack(put, [output[step] for output in outputs], first_axis))
        results = [_stack(put, by_step, first_axis)]
        for tensors in zip(*last_states, strict=True):
            results.append(_stack(put, tensors, first_axis))
        return results[: self.output_count]

    def _write_direction(self, put: Writer, way: int) -> tuple[list[str], list[str]]:
        """Write one direction, and return the output of each step in the order of the input, and the last
        state."""
        cell = _LstmCell(put, self.size) if self.is_lstm else _GruCell(put, self.size)
        weights, state_weights = put.constant(self.weights[way].T), put.constant(self.state_weights[way].T)
        bias, state_bias = self._write_biases(put, way)
        state = self._write_first_state(put, way)
        is_back = self.direction == "reverse" or way == 1
        outputs = [""] * self.steps
        for step in reversed(range(self.steps)) if is_back else range(self.steps):
            x = _row(put, self.input, step)
            of_input = put("Add", put("MatMul", x, weights), bias)
            of_state = put("Add", put("MatMul", state[0], state_weights), state_bias)
            state = cell.step(of_input, of_state, state)
            outputs[step] = state[0]
        return outputs, state

    def _write_biases(self, put: Writer, way: int) -> tuple[str, str]:
        if self.biases is None:
            zeros = np.zeros(self.weights.shape[1])
            return put.constant(zeros), put.constant(zeros)
        of_input, of_state = np.split(self.biases[way], 2)
        return put.constant(of_input), put.constant(of_state)

    def _write_first_state(self, put: Writer, way: int) -> list[str]:
        state = []
        for name in self.first_state:
            state.append(_row(put, name, way) if name else put.constant(np.zeros((self.batch, self.size))))
        return state


def _row(put: Writer, name: str, number: int) -> str:
    return put("Gather", name, put.constant(number, np.int64), axis=0)


def _stack(put: Writer, tensors: Sequence[str], first_axis: str) -> str:
    """Write a tensor with these as its rows."""
    rows = [put("Unsqueeze", tensor, first_axis) for tensor in tensors]
    return put("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]


def recurrent_cell_by_cell(model: RepairedOnnx, node: onnx.NodeProto) -> OnnxMatch | None:
    """Write the layer as its cells; None if it computes something that no cell here does."""
    layer = _layer_of(model, node)
    if layer is None:
        return None
    operands = variables_of(model, (layer.input, *layer.first_state))
    return OnnxMatch(node, operands, layer.write)


def _layer_of(model: RepairedOnnx, node: onnx.NodeProto) -> _Layer | None:
    attributes, is_lstm = attributes_of(node), node.op_type == "LSTM"
    names = [*node.input, *[""] * PEEPHOLES][: PEEPHOLES + 1]
    weights, state_weights = model.constant(names[WEIGHTS]), model.constant(names[STATE_WEIGHTS])
    shape = model.shape(names[INPUT])
    if weights is None or state_weights is None or not shape:
        return None
    resets_before = not is_lstm and not attributes.get("linear_before_reset")
    if resets_before or names[LENGTHS] or names[PEEPHOLES] or any(name in attributes for name in UNUSUAL):
        return None
    steps, batch, _ = shape
    return _Layer(
        is_lstm=is_lstm,
        input=names[INPUT],
        steps=steps,
        batch=batch,
        size=attributes["hidden_size"],
        weights=weights,
        state_weights=state_weights,
        biases=model.constant(names[BIASES]) if names[BIASES] else None,
        first_state=names[FIRST_OUTPUT : FIRST_MEMORY + 1] if is_lstm else [names[FIRST_OUTPUT]],
        direction=attributes.get("direction", b"forward").decode(),
        output_count=len(node.output),
    )
