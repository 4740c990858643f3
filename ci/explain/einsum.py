"""Express an einsum of two operands as a product of matrices.

A letter of the equation is a dimension. A letter that both operands and the result have counts matrices of a
batch. One that both operands have, but not the result, is multiplied and summed. One that an operand shares
only with the result stays a dimension of it, and one that an operand has alone is summed beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
    """The product has these sizes."""
    sizes: list[int]
    """The product is reshaped to these sizes, one for each dimension of the result."""
    order: list[int]
    """The result has the dimensions in this order."""


@dataclass(frozen=True, slots=True)
class Equation:
    """It is an einsum of two operands: each is named by the letters of its dimensions, and so is the
    result."""

    left: str
    right: str
    result: str

    @classmethod
    def read(cls, text: str) -> Equation | None:
        """Read an equation, such as `bij,bjk->bik`. It is None for a form that is no product of matrices."""
        operands, arrow, result = text.replace(" ", "").partition("->")
        words = operands.split(",")
        if len(words) != 2 or "." in text:
            return None
        if not arrow:
            # What stands once is a dimension of the result, in the order of the alphabet.
            letters = {*operands} - {","}
            result = "".join(sorted(letter for letter in letters if operands.count(letter) == 1))
        if any(len({*word}) != len(word) for word in (*words, result)):
            return None
        left, right = words
        return cls(left, right, result)

    def sizes_of_letters(self, shapes: Sequence[Sequence[int]]) -> dict[str, int] | None:
        """Map each letter to its size; None if the operands have other dimensions, or a letter has two
        sizes."""
        sizes: dict[str, int] = {}
        for word, shape in zip((self.left, self.right), shapes, strict=True):
            if len(word) != len(shape):
                return None
            for letter, size in zip(word, shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    return None
        return sizes


def product_of(text: str, shapes: Sequence[Sequence[int]]) -> MatrixProduct | None:
    """Return an einsum of two operands as a product of matrices; None if it is no such product, as when a
    letter is twice in one word, or has two sizes."""
    equation = Equation.read(text)
    if equation is None or len(shapes) != 2:
        return None
    sizes = equation.sizes_of_letters(shapes)
    if sizes is None:
        return None
    left, right, result = equation.left, equation.right, equation.result
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in result]
    multiplied = [letter for letter in shared if letter not in result]
    rows = [letter for letter in left if letter in result and letter not in shared]
    columns = [letter for letter in right if letter in result and letter not in shared]
    dimensions = [*batch, *rows, *columns]
    return MatrixProduct(
        parts=(
            _factor_of(left, batch, rows, multiplied, sizes),
            _factor_of(right, batch, multiplied, columns, sizes),
        ),
        matrix=_matrix_sizes(batch, rows, columns, sizes),
        sizes=[sizes[letter] for letter in dimensions],
        order=[dimensions.index(letter) for letter in result],
    )


def _factor_of(
    word: str, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str], sizes: Mapping[str, int]
) -> Factor:
    """Return how an operand becomes a batch of matrices with these rows and columns."""
    letters = [*batch, *rows, *columns]
    kept = [letter for letter in word if letter in letters]
    return Factor(
        summed=[axis for axis, letter in enumerate(word) if letter not in letters],
        order=[kept.index(letter) for letter in letters],
        sizes=_matrix_sizes(batch, rows, columns, sizes),
    )


def _matrix_sizes(
    batch: Sequence[str], rows: Sequence[str], columns: Sequence[str], sizes: Mapping[str, int]
) -> list[int]:
    """Return the sizes of a batch of matrices; several letters make one dimension of a matrix."""
    batch_sizes = [sizes[letter] for letter in batch]
    row_count = math.prod(sizes[letter] for letter in rows)
    column_count = math.prod(sizes[letter] for letter in columns)
    return [*batch_sizes, row_count, column_count]
