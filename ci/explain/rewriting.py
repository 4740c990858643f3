"""Rewrite a graph, in both lanes: choose the rewrites that a model needs, and prove that each computes the
same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, TypeVar

from ci.explain.proof import NotTheSame, require_same
from ci.models.inputs import Array
from provisioning.known_faults import Fault, KnownFix, Lane, load_faults, load_fixes

WHOLE_BOUND = 1e-3
"""The whole model may differ by this share: what follows a rewrite may enlarge its rounding."""


@dataclass(frozen=True, slots=True)
class Need:
    """A precision and these builds call for this rewrite."""

    rewrite: str
    rules: tuple[str, ...]
    words: str
    values: tuple[float, ...] = ()
    bound: float = 1e-5
    withheld: str = ""
    """Says why the rewrite is not made where it could be."""

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
    """The least value of an operand for which the node and its rewrite must agree."""


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
        if rules is not None and fix.rule not in rules:
            continue
        if fix.rewrite and _concerns(fix, faults.get(fix.rule), precision, lane, versions):
            due.setdefault(fix.rewrite, []).append(fix)
    needs = []
    for rewrite, fixes in due.items():
        if active_fixes := [fix for fix in fixes if _is_here(faults.get(fix.rule), versions)]:
            needs.append(Need.of(rewrite, active_fixes))
            continue
        reasons = []
        for fix in fixes:
            fault = faults[fix.rule]
            own = versions[fault.product]
            reasons.append(f"{fault.id} is of {fault.product} {fault.versions}, and this is {own}")
        needs.append(Need.of(rewrite, fixes, f"this build does not need it: {'; '.join(reasons)}"))
    return needs


def _concerns(
    fix: KnownFix, fault: Fault | None, precision: str, lane: Lane, versions: Mapping[str, str]
) -> bool:
    """Whether a fix is for this precision and lane, and its fault is of a product that the build has."""
    if (fault.lane if fault else fix.lane) not in ("any", lane):
        return False
    if fault is not None and fault.product not in versions:
        return False
    return not fix.precisions or any(fnmatchcase(precision, pattern) for pattern in fix.precisions)


def _is_here(fault: Fault | None, versions: Mapping[str, str]) -> bool:
    return fault is None or fault.concerns(fault.product, versions[fault.product])
