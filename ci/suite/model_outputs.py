"""The outputs of a model for its samples, as a program of it should give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ci.models.inputs import Array, Sample
from ci.suite.accuracy import Pair, pair_of_choice


@dataclass(frozen=True)
class ChosenValues:
    """Holds the values that an output's indices chose among, for each sample."""

    values: Sequence[Array]
    dim: int
    noise: float


@dataclass(frozen=True)
class ModelOutputs:
    """Holds what a model gives for each sample, as a program should give it."""

    by_sample: Sequence[Sample]
    chosen: Mapping[str, ChosenValues] = field(default_factory=dict)
    """The outputs that are indices."""

    def pairs(self, outputs: Sequence[Sample]) -> Iterator[Pair]:
        """Pair these outputs with a program's; indices are paired with what they chose among."""
        return chain.from_iterable(self.pairs_by_sample(outputs))

    def pairs_by_sample(self, outputs: Sequence[Sample]) -> list[list[Pair]]:
        """Return the pairs of each sample; there are none if nothing is expected."""
        if not self.by_sample:
            return []
        rows = enumerate(zip(self.by_sample, outputs, strict=True))
        return [self._pairs_of(number, expected, found) for number, (expected, found) in rows]

    def plain_pairs(self, outputs: Sequence[Sample]) -> list[Pair]:
        """Pair these outputs with a program's as they are, indices too."""
        return list(ModelOutputs(self.by_sample).pairs(outputs))

    def _pairs_of(self, number: int, expected: Sample, found: Sample) -> list[Pair]:
        pairs = []
        for name, array in expected.items():
            title, other = f"output {name} of sample {number}", found[name]
            among = self.chosen.get(name)
            if among is None or array.shape != other.shape:
                pairs.append(Pair(title, array, other, name))
                continue
            values = among.values[number]
            pairs.append(pair_of_choice(title, array, other, name, values, dim=among.dim, noise=among.noise))
        return pairs
