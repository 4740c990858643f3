"""The search for the first operator whose output on the emulator is not the quantized model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ci.pipeline.accuracy import Pair, Unusable, least_sqnr_db

LEAST_DB = 30.0
"""A lower SQNR is a difference, unless the user or a threshold names another one."""

N = TypeVar("N")


class Cuts(Generic[N]):
    """SQNR of the program that ends at a node, on the emulator against the CPU."""

    def __init__(self, name: Callable[[N], str], pairs: Callable[[N | None], Sequence[Pair]]) -> None:
        """`pairs` gives the outputs of both; without a node, those of the whole program."""
        self.name, self.pairs = name, pairs
        self.known: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        """Why a program has no SQNR."""

    def of(self, node: N | None) -> float | None:
        """None if that program does not compile or run."""
        name = "" if node is None else self.name(node)
        if name not in self.known and name not in self.failed:
            try:
                self.known[name] = least_sqnr_db(self.pairs(node))
            except Unusable:
                self.known[name] = -float("inf")
            except Exception as error:
                if node is None:
                    raise
                self.failed[name] = next(iter(str(error).splitlines()), type(error).__name__)
        return self.known.get(name)

    def search(
        self,
        nodes: Callable[[], Sequence[N]],
        ends: Callable[[], Sequence[N]],
        operands_of: Callable[[N], Sequence[N]],
        described: Callable[[N], dict[str, str]],
        least: float,
    ) -> dict[str, Any]:
        """The whole program's SQNR, and the first operator that differs though its operands agree.

        `ends` are the operators that compute the model's outputs."""
        whole = self.of(None)
        assert whole is not None
        first: dict[str, Any] | None = None
        if whole < least and (pair := first_different(nodes(), ends(), self.of, operands_of, least)):
            node, operands = pair
            first = {
                **described(node),
                "node": self.name(node),
                "sqnr_db": self.of(node),
                "operands": {self.name(each): value for each, value in operands},
            }
        cuts = {name: value for name, value in self.known.items() if name}
        return {"least": least, "sqnr_db": whole, "first": first, "cuts": cuts, "failed": self.failed}


def first_different(
    nodes: Sequence[N],
    ends: Sequence[N],
    sqnr: Callable[[N], float | None],
    operands_of: Callable[[N], Sequence[N]],
    least: float,
) -> tuple[N, list[tuple[N, float | None]]] | None:
    """The first operator whose output differs while its operands agree, and these operands."""

    def differs(node: N) -> bool:
        value = sqnr(node)
        return value is not None and value < least

    wrong = next((each for each in ends if each in nodes and differs(each)), None)
    if wrong is None:
        return None
    low, high = -1, nodes.index(wrong)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(nodes[middle]) else (middle, high)
    node = nodes[high]
    # In a model with branches, the node before it in the list need not be its operand.
    while worse := [each for each in operands_of(node) if each in nodes and differs(each)]:
        node = worse[0]
    return node, [(each, sqnr(each)) for each in operands_of(node) if each in nodes]


def as_text(result: Mapping[str, Any]) -> Iterator[str]:
    whose, least = result["reference"], result["least"]
    yield f"the whole program: {result['sqnr_db']:.1f} dB SQNR against {whose}"
    first = result["first"]
    if result["sqnr_db"] >= least:
        yield f"that is no difference: at least {least:g} dB"
    elif first is None:
        yield "no output in floats differs in a program of its own: whole numbers may, or all of it together"
    else:
        where = f" in {first['module']}" if first["module"][:1] not in ("", "(") else ""
        where += f" at {first['source']} `{first['code']}`" if first["source"] else ""
        operands = ", ".join(
            f"{name} not measured" if value is None else f"{name} {value:.1f} dB"
            for name, value in first["operands"].items()
        )
        operands = operands or "the inputs"
        yield f"first different: {first['operator']} ({first['node']}){where}"
        yield (f"  programs that end there: {first['sqnr_db']:.1f} dB; at its operands: {operands}")
        yield f"  {len(result['cuts'])} programs were cut, compiled and run"
        for name, error in result["failed"].items():
            yield f"  the program that ends at {name} does not compile or run: {error}"
