"""What the pieces of PyTorch and ONNX models have alike: the values of what they take, cut and replaced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ci.pipeline.models.arrays import Array, Sample
from ci.pipeline.models.simple_values import FIRST, FORMS, can_be_said, cut, simple, source_of
from ci.pipeline.reduce import Subgraph, smaller_sizes

G = TypeVar("G")


LEAST_VALUES = 4
"""Of an input: a range of fewer says little of how it is quantized."""


class NotAPiece(Exception):
    """Operators that are no program."""


@dataclass(frozen=True)
class Border:
    """What a set of operators has from outside, and gives."""

    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


class Pieces(ABC, Generic[G]):
    """The pieces of one model, of which each tensor's values are known for some samples."""

    samples: Sequence[Mapping[str, Array]]
    operators: tuple[str, ...]

    @abstractmethod
    def border(self, piece: Subgraph) -> Border: ...

    @abstractmethod
    def weight(self, name: str) -> Array: ...

    @abstractmethod
    def built(self, piece: Subgraph) -> tuple[G, list[Sample]]:
        """The program, and its inputs for each sample. Raises NotAPiece."""

    @property
    def whole(self) -> Subgraph:
        return Subgraph(self.operators)

    def arrays(self, piece: Subgraph) -> dict[str, list[Array]]:
        """By input and weight, its values in all samples, without their replacement."""
        border = self.border(piece)
        samples = self.samples if piece.sample is None else [self.samples[piece.sample]]
        every = {name: [sample[name] for sample in samples] for name in border.inputs}
        every |= {name: [self.weight(name)] for name in border.weights}
        return {name: [cut(array, piece.sizes) for array in arrays] for name, arrays in every.items()}

    def values(self, piece: Subgraph) -> tuple[dict[str, Array], list[Sample]]:
        """The weights, and the inputs of each sample: one alone where their values are replaced."""
        arrays, forms, border = self.arrays(piece), dict(piece.values), self.border(piece)
        weights = {name: simple(arrays[name], forms.get(name, "")) for name in border.weights}
        if any(name in forms for name in border.inputs):
            one = {name: simple(arrays[name], forms.get(name, FIRST)) for name in border.inputs}
            return weights, [one]
        count = len(self.samples) if piece.sample is None else 1
        return weights, [{name: arrays[name][number] for name in border.inputs} for number in range(count)]

    def sources(self, piece: Subgraph) -> dict[str, str]:
        """What makes each input and weight in a script; "" where nothing short does."""
        arrays, forms = self.arrays(piece), dict(piece.values)
        return {
            name: source_of(every, form) if can_be_said(every[0], form := forms.get(name, "")) else ""
            for name, every in arrays.items()
        }

    def smaller(self, piece: Subgraph, done: set[tuple[int, int]]) -> Iterator[Subgraph]:
        """With one size cut; `done` are those that were tried."""
        arrays, inputs = self.arrays(piece), self.border(piece).inputs
        for old, new in smaller_sizes(every[0].shape for every in arrays.values()):
            whole = [arrays[name][0] for name in inputs]
            enough = all(cut(array, [(old, new)]).size >= min(array.size, LEAST_VALUES) for array in whole)
            if enough and (old, new) not in done:
                done.add((old, new))
                yield replace(piece, sizes=(*piece.sizes, (old, new)))

    def simpler(self, piece: Subgraph) -> Iterator[Subgraph]:
        """With values that can be said: at first of all at once, then one by one."""
        arrays, border, forms = self.arrays(piece), self.border(piece), dict(piece.values)
        if not forms:
            # Of inputs that do not vary, no range is found.
            yield piece.valued(border.weights, "full").valued(border.inputs, "linspace")
            for form in ("linspace", "random"):
                yield piece.valued(arrays, form)
            yield piece.valued(border.inputs, FIRST)
            return
        for name, every in arrays.items():
            if not can_be_said(every[0], forms.get(name, "")):
                for form in FORMS:
                    if form != "full" or name in border.weights:
                        yield piece.valued([name], form)


def named(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


def changed_number(value: Any, sizes: Sequence[tuple[int, int]]) -> Any:
    """A size that was cut, where a shape names it."""
    for old, new in sizes:
        value = new if value == old else value
    return value
