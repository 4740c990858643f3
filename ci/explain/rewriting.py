"""Rewrite a graph, in both lanes: choose the rewrites that a model needs, and prove that each computes the
same."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, TypeVar

from ci.models.inputs import Array
from provisioning.known_faults import Fault, KnownFix, Lane, load_faults, load_fixes

LARGER = 10
WHOLE_BOUND = 1e-3
"""The whole model may differ by this share: what follows a rewrite may enlarge its rounding."""
HTP_DIMENSIONS = 5
"""HTP permutes at most so many dimensions."""
FLOOR = 1e-3
"""Outputs that are smaller than this part of the sample's values are compared as if they had that size."""


@dataclass(frozen=True, slots=True)
class Need:
    """A precision and these builds call for this rewrite."""

    rewrite: str
    rules: tuple[str, ...]
    words: str
    values: tuple[float, ...] = ()
    bound: float = 1e-5
    withheld: str = ""
    """It says why the rewrite is not made where it could be."""

    @classmethod
    def of(cls, rewrite: str, fixes: Sequence[KnownFix], withheld: str = "") -> Need:
        return cls(
            rewrite,
            tuple(fix.rule for fix in fixes),
            fixes[0].words,
            tuple(value for fix in fixes for value in fix.values),
            max(fix.bound for fix in fixes),
            withheld,
        )


@dataclass(frozen=True, slots=True)
class RewrittenPlace:
    """It is one place of the model that was rewritten, or was not, with the reason."""

    rewrite: str
    rules: tuple[str, ...]
    words: str
    node: str
    source: str = ""
    code: str = ""
    refused: str = ""

    @property
    def place(self) -> str:
        return f"{self.source} `{self.code}`" if self.source else self.node


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """A worker replies with this."""

    changes: tuple[RewrittenPlace, ...]
    compared: int | None = None
    """So many samples judge the model; None means as many as is usual."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A lane's step returns this."""

    changes: Sequence[RewrittenPlace]
    model: Path | None
    """It is None if nothing was changed."""
    samples: Path | None = None
    """This folder has the samples that the model itself draws."""
    compared: int | None = None
    """So many of them judge the model, as they judge the first one."""

    @property
    def places(self) -> list[RewrittenPlace]:
        return [change for change in self.changes if not change.refused]


class NotTheSame(Exception):
    """A rewrite gives something else on the CPU."""


N = TypeVar("N")
V = TypeVar("V")
"""These are a graph's nodes, and their values."""


@dataclass(frozen=True)
class Match(Generic[N, V]):
    """`write` computes the outputs of a node from those of `operands`."""

    node: N
    operands: tuple[V, ...]
    write: Callable[..., Any]
    low: float = float("-inf")
    """It is the least value of an operand for which the node and its rewrite must agree."""


class Repaired(ABC, Generic[N, V]):
    """It holds a model while it is rewritten, with what was changed and what was refused."""

    def __init__(self, originals: Sequence[Sequence[Array]]) -> None:
        """`originals` are the model's outputs for its samples."""
        self.originals = originals
        self.changes: list[RewrittenPlace] = []

    @property
    def rewritten(self) -> bool:
        return any(not change.refused for change in self.changes)

    @abstractmethod
    def place_of(self, node: N) -> tuple[str, str, str]:
        """Return the node's name, and the line of the model that it comes from, with its code."""

    @abstractmethod
    def matches_of(self, need: Need) -> Iterator[Sequence[Match[N, V]]]:
        """Yield the places for a rewrite, in groups that are rewritten one after the other."""

    @abstractmethod
    def put(self, match: Match[N, V], need: Need) -> None:
        """Replace the match's node, if the rewrite is proved. Raises NotTheSame."""

    @abstractmethod
    def settle(self) -> None:
        """Clean up after rewrites: remove what nothing reads, and compute again what is known of the
        model."""

    @abstractmethod
    def outputs(self) -> Sequence[Sequence[Array]]:
        """Return the outputs of the model as it is now."""

    def note(self, need: Need, place: tuple[str, str, str], refused: str = "") -> None:
        self.changes.append(RewrittenPlace(need.rewrite, need.rules, need.words, *place, refused))

    def apply(self, needs: Sequence[Need]) -> None:
        for need in needs:
            for matches in self.matches_of(need):
                self._rewrite(need, matches)
                self.settle()
        if self.rewritten:
            self._judge()

    def _rewrite(self, need: Need, matches: Sequence[Match[N, V]]) -> None:
        for match in matches:
            place, refused = self.place_of(match.node), need.withheld
            try:
                if not refused:
                    self.put(match, need)
            except NotTheSame as error:
                refused = str(error)
            self.note(need, place, refused)

    def _judge(self) -> None:
        """Refuse all changes if the whole model with them gives something else for its samples."""
        try:
            for before, after in zip(self.originals, self.outputs(), strict=True):
                scale = max(float(abs(array.astype("f8")).max(initial=0)) for array in before)
                require_same(before, after, WHOLE_BOUND, scale)
        except NotTheSame as error:
            words = f"in the whole model {error}"
            self.changes = [
                change if change.refused else replace(change, refused=words) for change in self.changes
            ]


def needs_of(
    precision: str, lane: Lane, versions: Mapping[str, str], rules: Sequence[str] | None = None
) -> list[Need]:
    """Return the rewrites that this precision calls for, all or those of `rules`; rewrites that this build
    does not need are withheld. `versions` has the products of the build, as the table of faults names
    them."""
    faults = {fault.id: fault for fault in load_faults()}
    due: dict[str, list[KnownFix]] = {}
    for fix in load_fixes():
        fault = faults.get(fix.rule)
        if (
            fix.rewrite
            and (rules is None or fix.rule in rules)
            and (fault.lane if fault else fix.lane) in ("any", lane)
            and (fault is None or fault.product in versions)
            and (not fix.precisions or any(fnmatchcase(precision, pattern) for pattern in fix.precisions))
        ):
            due.setdefault(fix.rewrite, []).append(fix)
    needs = []
    for rewrite, fixes in due.items():
        if active_fixes := [fix for fix in fixes if _is_here(faults.get(fix.rule), versions)]:
            needs.append(Need.of(rewrite, active_fixes))
        else:
            reasons = []
            for fix in fixes:
                fault, own = faults[fix.rule], versions[faults[fix.rule].product]
                reasons.append(f"{fault.id} is of {fault.product} {fault.versions}, and this is {own}")
            needs.append(Need.of(rewrite, fixes, f"this build does not need it: {'; '.join(reasons)}"))
    return needs


def _is_here(fault: Fault | None, versions: Mapping[str, str]) -> bool:
    return fault is None or fault.concerns(fault.product, versions[fault.product])


def probes(samples: Sequence[Sequence[Array]], values: Sequence[float], low: float) -> Iterator[list[Array]]:
    """Yield inputs to prove with: those of the samples, then zeros, the ends of the range, drawn ones, larger
    ones, and the fault's values. Whole numbers stay within their range. `low` is the least allowed value."""
    import numpy as np

    yield from (list(sample) for sample in samples)
    generator: Any = np.random.default_rng(1)
    makers: list[tuple[Callable[..., Any], Callable[[Array], Any]]] = [
        (lambda shape, *_: np.full(shape, 0.0), np.zeros_like),
        (lambda shape, least, _: np.full(shape, least), lambda array: np.full_like(array, array.min())),
        (lambda shape, _, most: np.full(shape, most), lambda array: np.full_like(array, array.max())),
        (lambda shape, low, high: generator.uniform(low, high, shape), generator.permutation),
        (lambda shape, *ends: LARGER * generator.uniform(*ends, shape), lambda array: array),
        *([(lambda shape, *_: np.resize(np.asarray(values), shape), lambda array: array)] if values else []),
    ]
    for of_floats, of_others in makers:
        arrays = []
        for column in zip(*samples, strict=True):
            array = column[0]
            if array.dtype.kind == "f":
                finite = np.concatenate([draw[np.isfinite(draw)] for draw in column])
                ends = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
                arrays.append(np.maximum(of_floats(array.shape, *ends), low).astype(array.dtype))
            else:
                arrays.append(np.asarray(of_others(array)).astype(array.dtype).reshape(array.shape))
        yield arrays


def require_same(originals: Sequence[Array], results: Sequence[Array], bound: float, scale: float) -> None:
    """Require that the results are the originals within `bound`. `scale` is the size of the sample's values:
    smaller outputs are compared by a part of it. Raises NotTheSame."""
    import numpy as np

    if len(originals) != len(results):
        raise NotTheSame(f"{len(results)} outputs, where the model has {len(originals)}")
    for old, new in zip(originals, results, strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise NotTheSame(
                f"{new.dtype}{list(new.shape)}, where the model has {old.dtype}{list(old.shape)}"
            )
        before, after = old.astype("f8"), new.astype("f8")
        finite = np.isfinite(before)
        if not np.array_equal(before[~finite], after[~finite], equal_nan=True):
            raise NotTheSame("different values are infinite or NaN")
        largest = max(float(abs(before[finite]).max(initial=0)), FLOOR * scale)
        apart = float(abs(before[finite] - after[finite]).max(initial=0))
        if not apart <= bound * largest:
            raise NotTheSame(f"it differs by {apart:.3g} where the largest value is {largest:.3g}")


Batch = Callable[[Sequence[Sequence[Array]]], Sequence[Sequence[Array]]]
"""It returns the outputs for several inputs."""


def prove(
    old: Batch,
    new: Batch,
    samples: Sequence[Sequence[Array]],
    values: Sequence[float],
    bound: float,
    low: float = float("-inf"),
) -> None:
    """Compute both for all inputs that are tried, and compare them. Raises NotTheSame."""
    inputs = list(probes(samples, values, low))
    originals = old(inputs)
    own = [array[array == array] for outputs in originals[: len(samples)] for array in outputs]
    scale = max(float(abs(array).max(initial=0)) for array in own)
    for before, after in zip(originals, new(inputs), strict=True):
        require_same(before, after, bound, scale)


def merge(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return sizes and order of the same permutation with fewer dimensions: those of size one are left out,
    and those that stay neighbours become one."""
    order = [axis for axis in order if shape[axis] > 1]
    groups: list[list[int]] = []
    axes = sorted(order)
    for axis in order:
        place = axes.index(axis)
        if groups and place and groups[-1][-1] == axes[place - 1]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    by_begin = sorted(groups)
    sizes = []
    for group in by_begin:
        sizes.append(math.prod(shape[axis] for axis in group))
    return sizes, [by_begin.index(group) for group in groups]


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of an einsum is changed so before it is multiplied: summed, permuted and reshaped, in this
    order."""

    summed: list[int]
    """It is summed over these dimensions."""
    order: list[int]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """It expresses an einsum of two operands as a product of matrices."""

    parts: tuple[Factor, Factor]
    matrix: list[int]
    """`matrix` has the sizes of the product, `sizes` those of all its dimensions, and `order` says how the
    result has them."""
    sizes: list[int]
    order: list[int]


def product_of(equation: str, shapes: Sequence[Sequence[int]]) -> MatrixProduct | None:
    """Return an einsum of two operands as a product of matrices; None if it is no such product, as when a
    letter is twice in one word, or has two sizes."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    words = operands.split(",")
    if len(words) != len(shapes) or "." in equation or [*map(len, words)] != [*map(len, shapes)]:
        return None
    if not arrow:
        result = "".join(sorted(letter for letter in {*operands} - {","} if operands.count(letter) == 1))
    size = {
        letter: number
        for pair in zip(words, shapes, strict=True)
        for letter, number in zip(*pair, strict=True)
    }
    same = all([*map(size.get, word)] == [*shape] for word, shape in zip(words, shapes, strict=True))
    if not same or any(len({*word}) != len(word) for word in (*words, result)):
        return None
    common_letters = [letter for letter in words[0] if letter in words[1]]
    batch = [letter for letter in common_letters if letter in result]
    common = [letter for letter in common_letters if letter not in result]
    kept = {*result} - {*common_letters}
    alone = [[*filter(kept.__contains__, word)] for word in words]

    def sizes(*parts: Sequence[str]) -> list[int]:
        return [*map(size.__getitem__, batch), *(math.prod(map(size.__getitem__, part)) for part in parts)]

    def factor(word: str, *parts: Sequence[str]) -> Factor:
        rest = [letter for letter in word if letter in common_letters or letter in result]
        summed = [axis for axis, letter in enumerate(word) if letter not in rest]
        order = [rest.index(letter) for letter in (*batch, *parts[0], *parts[1])]
        return Factor(summed, order, sizes(*parts))

    letters = [*batch, *alone[0], *alone[1]]
    return MatrixProduct(
        (factor(words[0], alone[0], common), factor(words[1], common, alone[1])),
        sizes(*alone),
        [size[letter] for letter in letters],
        [letters.index(letter) for letter in result],
    )
