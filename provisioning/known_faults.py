"""Known faults of what a profile pins (manifests/known_faults.toml), and the repairs of findings: in words
and by the name of a rewrite of the graph (manifests/fixes.toml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from provisioning.accepted_file import SHIPPED, load_accepted
from provisioning.base.commands import Fix, session
from provisioning.base.documents import Model, load
from provisioning.base.findings import Edit
from provisioning.base.settings import MANIFESTS
from provisioning.build_ids import version_in

FIXES = MANIFESTS / "fixes.toml"
NO_FIX = "no fix is known"


class KnownFix(Model):
    rule: str
    """The id of the known fault that it repairs; a name of its own if it repairs none."""
    words: str
    operators: tuple[str, ...] = ()
    """The operators that it repairs if they stay on the CPU, as both lanes name them."""
    where: Literal["cpu", "builder"] = "cpu"
    """Whether they stay on the CPU, or end the backend's builder."""
    lane: Literal["executorch", "onnx", "any"] = "any"
    """The lane of a fix that belongs to no known fault."""
    code: str = ""
    """What the model's source line must match."""
    reason: str = ""
    """What the backend says of it must match."""
    find: str = ""
    """The part of the source line to replace; `write` is what replaces it, and both mean the same."""
    write: str = ""
    rewrite: str = ""
    """The name of the function that rewrites a graph so."""
    none: str = ""
    """The reason why no rewrite repairs it."""
    commands: tuple[tuple[str, ...], ...] = ()
    """The commands that `{}` of `none` stands for."""
    precisions: tuple[str, ...] = ()
    """Patterns of the precisions that need it; empty if all do."""
    values: tuple[float, ...] = ()
    """The values at which the fault is seen, which the proof tries."""
    bound: float = 1e-5
    """The largest difference that the proof allows, as a share of the largest value."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to write instead; false where nothing is known."""

    words: str = ""
    edit: Edit | None = None
    """The change of the model's line."""

    def __bool__(self) -> bool:
        return bool(self.words)

    def __str__(self) -> str:
        return f"{self.edit}: {self.words}" if self.edit else self.words


class Fixes(Model):
    schema_: Literal[1] = Field(alias="schema")
    fix: tuple[KnownFix, ...] = Field(min_length=1)


@cache
def load_fixes() -> tuple[KnownFix, ...]:
    return load(FIXES, Fixes).fix


@cache
def words_of(rule: str) -> str:
    """Return the words that say what repairs a known fault."""
    return next(fix.words for fix in load_fixes() if fix.rule == rule)


def fix_for(
    operator: str,
    code: str,
    source: str = "",
    where: Literal["cpu", "builder"] = "cpu",
    *,
    reason: str = "",
) -> Suggestion:
    """Suggest what to write instead of an operator that the backend refuses for this reason; with `source`,
    FILE:LINE of the code, also the line as it should be."""
    for fix in load_fixes():
        if operator not in fix.operators or fix.where != where:
            continue
        if re.search(fix.code, code) and re.search(fix.reason, reason):
            return _at(fix, code, source)
    return Suggestion()


def fix_at(rule: str, code: str, source: str) -> Suggestion:
    """Suggest what to write at a line of the model."""
    return next((_at(fix, code, source) for fix in load_fixes() if fix.rule == rule), Suggestion())


def _at(fix: KnownFix, code: str, source: str) -> Suggestion:
    file, _, line = source.rpartition(":")
    if file and fix.find and (old := re.search(fix.find, code)):
        return Suggestion(fix.words, Edit(file, int(line), old[0], old.expand(fix.write)))
    return Suggestion(fix.words)


MANIFEST = MANIFESTS / "known_faults.toml"

FIGURES = MANIFESTS / "accepted" / "faults.json"
"""What each script printed last: its fault's `figure`."""
SCRIPTS = MANIFESTS / "faults"
"""A script for each fault that can be shown with what is pinned, by its id, without code of this project."""

BOUND = r"([<>=!]=|[<>])\d+(\.\d+)*"

Product = Literal["qnn", "executorch", "onnxruntime-qnn"]
Lane = Literal["executorch", "onnx", "any"]


class Fault(Model):
    id: str
    operators: tuple[str, ...] = ()
    """The operators that have the fault, by the names of their rows in the operator table."""
    schemes: tuple[str, ...] = ()
    """The schemes that have the fault; empty if all have it."""
    arches: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kinds of a cast's operand that have the fault; empty if all have it."""
    overloads: tuple[str, ...] = ()
    """The overloads of the operator that have the fault; empty if all have it."""
    least: float | None = None
    """The value that an input of the program must have, or be below, to show the fault."""
    when: str = ""
    """The name of the function in `ci/operators/faults.py` that says whether a node can show the fault."""
    dies: bool = False
    """Whether it gives no program, or leaves the operator on the CPU: it explains no wrong number."""
    met: bool = True
    """Whether a program can have it: it cannot if the lanes refuse it beforehand, or their settings avoid
    it."""
    title: str
    product: Product
    versions: Annotated[str, StringConstraints(pattern=rf"^{BOUND}(,{BOUND})*$")]
    """Versions of the product: `>=2.48,<2.51`."""
    where: Literal["emulator", "device"]
    """The place where it was seen."""
    lane: Lane
    effect: str
    """What happens, and where."""
    correct: str = ""
    """What is similar and does not have the fault."""
    quantity: str = ""
    """What the figure is of, if the figure does not say it."""
    figure: str = ""
    """The figure that its script printed last."""
    show: str | tuple[str, ...] = ""
    """The one command that shows it; ours is a list of arguments. Without one, its script does."""
    source: str
    measured: bool
    """Whether this project saw it itself; else the thread says so."""
    upstream: str = ""
    """What those who make the product say of it."""

    @property
    def fix(self) -> str:
        return words_of(self.id)

    @property
    def shown_by(self) -> Fix:
        if not self.show:
            return session("shell", "python", SCRIPTS / f"{self.id}.py")
        return Fix(self.show) if isinstance(self.show, str) else session(*self.show)

    @property
    def measurement(self) -> str:
        """What its script printed, with what it is of; empty if it has no script."""
        return f"{self.quantity}: {self.figure}" if self.quantity and self.figure else self.figure

    @property
    def script(self) -> str:
        """The script's path in the repository; empty if there is none."""
        path = SCRIPTS / f"{self.id}.py"
        return f"manifests/faults/{path.name}" if path.is_file() else ""

    def concerns(self, product: str, version: str) -> bool:
        # Importing it takes as long as all else here.
        from packaging.specifiers import SpecifierSet

        return product == self.product and SpecifierSet(self.versions).contains(version, prereleases=True)


@dataclass(frozen=True, slots=True)
class SuspectedFault:
    """A fault that a program can have: that it has it is not proved."""

    message: str
    command: str
    """What to write instead."""
    fault: str
    """The fault's id."""

    @classmethod
    def of(cls, fault: Fault, line: str = "") -> SuspectedFault:
        """`line` is where it is suspected, if nothing else says it."""
        at = f" at {line}" if line else ""
        return cls(f"{fault.title} ({fault.id}){at}", fault.fix, fault.id)


class Faults(Model):
    schema_: Literal[1] = Field(alias="schema")
    fault: tuple[Fault, ...]


@cache
def load_faults() -> tuple[Fault, ...]:
    """Load the faults, with the figures that their scripts printed."""
    figures = load_accepted(FIGURES, SHIPPED)
    return tuple(
        fault.model_copy(update={"figure": str(figures.of(fault.id).get("figure", ""))})
        for fault in load(MANIFEST, Faults).fault
    )


def faults_of(product: str, version: str) -> list[Fault]:
    return [fault for fault in load_faults() if fault.concerns(product, version)]


def faults_of_build(build_id: str, lane: Lane) -> list[Fault]:
    """Faults of QNN alone, for programs of this lane."""
    return [
        fault
        for fault in faults_of("qnn", version_in(build_id))
        if "any" in (lane, fault.lane) or lane == fault.lane
    ]
