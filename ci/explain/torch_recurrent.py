"""Define the rewrites that write a recurrent layer cell by cell: for each step, layer and direction the
products and activations of one LSTM or GRU cell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from ci.explain.torch_rewrites import aten, reads_of
from ci.explain.torch_rewriting import NodeMatch, Registry, RepairedModule

RECURRENT = Registry()
find_at = RECURRENT.find_at

State = Sequence[Tensor]
"""It is what a cell hands on to the next step: its output first, and an LSTM's memory behind it."""
Cell = Callable[[Tensor, Tensor, State | None], State]
"""It computes a state from the products of the input and of the state with all gates' weights, and from the
state before. The first step from an empty state has none: a program may not hand out its zeros."""


def _lstm_cell(of_input: Tensor, of_state: Tensor, state: State | None) -> State:
    enter, forget, new, leave = (of_input + of_state).chunk(4, -1)
    memory = torch.sigmoid(enter) * torch.tanh(new)
    if state is not None:
        memory = torch.sigmoid(forget) * state[1] + memory
    return [torch.sigmoid(leave) * torch.tanh(memory), memory]


def _gru_cell(of_input: Tensor, of_state: Tensor, state: State | None) -> State:
    reset, update, new = of_input.chunk(3, -1)
    state_reset, state_update, state_new = of_state.chunk(3, -1)
    gate = torch.sigmoid(update + state_update)
    candidate = torch.tanh(new + torch.sigmoid(reset + state_reset) * state_new)
    output = candidate - gate * candidate
    if state is not None:
        output = output + gate * state[0]
    return [output]


@dataclass(frozen=True)
class CellWeights:
    """Holds the weights of one layer in one direction, all gates in one tensor each."""

    of_input: Tensor
    of_state: Tensor
    biases: Sequence[Tensor]
    """The bias of the input and that of the state; none if the layer has none."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> CellWeights:
        of_input, of_state, *biases = tensors
        return cls(of_input, of_state, biases)

    def run(self, cell: Cell, steps: Sequence[Tensor], state: State | None) -> tuple[list[Tensor], State]:
        """Return the output of each step, and the last state."""
        outputs = []
        for x in steps:
            state = cell(self._product_of_input(x), self._product_of_state(state), state)
            outputs.append(state[0])
        assert state is not None, "a layer has at least one step"
        return outputs, state

    def _product_of_input(self, x: Tensor) -> Tensor:
        # The quantizer wants a bias of its own in each call.
        bias = self.biases[0].clone() if self.biases else None
        return functional.linear(x, self.of_input, bias)

    def _product_of_state(self, state: State | None) -> Tensor:
        bias = self.biases[1].clone() if self.biases else None
        if state is not None:
            return functional.linear(state[0], self.of_state, bias)
        return torch.zeros(self.of_state.shape[0]) if bias is None else bias


@dataclass(frozen=True)
class Layers:
    """Writes recurrent layers. The call has the arguments of `aten.lstm.input` and `aten.gru.input`."""

    cell: Cell
    is_empty: bool
    """Whether the first state is all zeros."""
    reads: Collection[object]
    """Only these of the results are read."""

    def __call__(
        self,
        x: Tensor,
        state: Tensor | State,
        weights: Sequence[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        two_ways: bool,
        batch_first: bool,
    ) -> tuple[Tensor | None, ...]:
        x = x.transpose(0, 1) if batch_first else x
        states = _tensors_of(state)
        weights_of_cell = 4 if has_biases else 2
        ways = 2 if two_ways else 1
        last_states: list[State] = []
        for _ in range(layers):
            outputs = []
            for way in range(ways):
                # States and weights are in the order of layers, and in each of directions.
                place = len(last_states)
                first = None if self.is_empty else [tensor[place] for tensor in states]
                own_weights = weights[place * weights_of_cell : (place + 1) * weights_of_cell]
                output, last = self._write_direction(x, CellWeights.of(own_weights), first, is_back=way == 1)
                outputs.append(output)
                last_states.append(last)
            x = torch.cat(outputs, -1) if two_ways else outputs[0]
        results = [x.transpose(0, 1) if batch_first else x]
        for tensors in zip(*last_states, strict=True):
            results.append(torch.stack(tensors))
        return _only(results, self.reads)

    def _write_direction(
        self, x: Tensor, weights: CellWeights, first: State | None, *, is_back: bool
    ) -> tuple[Tensor, State]:
        """Return the outputs of one layer in one direction, in the order of the input, and its last state."""
        steps = list(x.unbind(0))
        if is_back:
            steps.reverse()
        outputs, last = weights.run(self.cell, steps, first)
        if is_back:
            outputs.reverse()
        return torch.stack(outputs), last


def _tensors_of(state: Tensor | State) -> list[Tensor]:
    """Return the state as a list; a GRU has it as one tensor."""
    return [state] if isinstance(state, Tensor) else list(state)


def _only(results: Sequence[Tensor], reads: Collection[object]) -> tuple[Tensor | None, ...]:
    """Return the results that are read, and None in place of the others."""
    return tuple(result if number in reads else None for number, result in enumerate(results))


@find_at("recurrent-cell-by-cell", aten.lstm.input, aten.gru.input)
def recurrent_cell_by_cell(model: RepairedModule, node: Node) -> NodeMatch:
    state = node.args[1]
    first = [
        part for part in (state if isinstance(state, list | tuple) else [state]) if isinstance(part, Node)
    ]
    is_empty = not any(model.varies(tensor) or model.value(tensor).any() for tensor in first)
    cell = _lstm_cell if node.target is aten.lstm.input else _gru_cell
    return model.call(node, Layers(cell, is_empty, reads_of(node)))


@find_at("recurrent-cell-by-cell", aten.lstm_cell.default)
def lstm_cell_in_parts(model: RepairedModule, node: Node) -> NodeMatch:
    """Write a cell in parts: the quantizer has no rule for it, and what it is lowered to stays in float."""
    return model.call(node, partial(_write_lstm_cell, reads_of(node)))


@find_at("recurrent-cell-by-cell", aten.gru_cell.default)
def gru_cell_in_parts(model: RepairedModule, node: Node) -> NodeMatch:
    """Write a cell in parts, as `lstm_cell_in_parts` does."""
    return model.call(node, _write_gru_cell)


def _write_lstm_cell(
    reads: Collection[object], x: Tensor, state: State, *weights: Tensor | None
) -> tuple[Tensor | None, ...]:
    return _only(_last_state(_lstm_cell, x, state, weights), reads)


def _write_gru_cell(x: Tensor, state: Tensor, *weights: Tensor | None) -> Tensor:
    (output,) = _last_state(_gru_cell, x, [state], weights)
    return output


def _last_state(cell: Cell, x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    tensors = [tensor for tensor in weights if tensor is not None]
    _, last = CellWeights.of(tensors).run(cell, [x], state)
    return last
