"""What repairs a finding: manifests/fixes.toml, in words and by the name of a rewrite of the graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from provisioning.base.documents import Model, Regex, distinct, load
from provisioning.base.findings import Edit
from provisioning.base.settings import MANIFESTS

MANIFEST = MANIFESTS / "fixes.toml"
NO_FIX = "no fix is known"


class KnownFix(Model):
    rule: str
    """Of a known fault, its id."""
    words: str
    operators: tuple[str, ...] = ()
    """Those that it is for where they stay on the CPU, as both lanes name them."""
    where: Literal["cpu", "builder"] = "cpu"
    """Whether they stay on the CPU, or end the backend's builder."""
    lane: Literal["executorch", "onnx", "any"] = "any"
    """Of a fix that is of no known fault."""
    code: Regex = ""
    """What the model's source line must match."""
    reason: Regex = ""
    """What the backend says of it must match."""
    find: Regex = ""
    """What of the source line to replace, and by what; both mean the same."""
    write: str = ""
    proof: str = ""
    """A case of the default suite, or of lab/suites/models.toml, with it, which leaves nothing on the CPU."""
    rewrite: str = ""
    """The name of what rewrites a graph so."""
    none: str = ""
    """Why nothing does."""
    commands: tuple[tuple[str, ...], ...] = ()
    """What `{}` of `none` stands for."""
    precisions: tuple[str, ...] = ()
    """Those that need it, with `*`; without, all."""
    values: tuple[float, ...] = ()
    """At which the fault is seen: the proof tries them."""
    bound: float = 1e-5
    """The largest difference that the proof allows, as a share of the largest value."""
    changes_interface: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> KnownFix:
        if bool(self.rewrite) == bool(self.none):
            raise ValueError("either rewrite or none")
        return self


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to write instead; false where nothing is known."""

    words: str = ""
    edit: Edit | None = None
    """Of the model's line."""

    def __bool__(self) -> bool:
        return bool(self.words)

    def __str__(self) -> str:
        return f"{self.edit}: {self.words}" if self.edit else self.words


class Fixes(Model):
    schema_: Literal[1] = Field(alias="schema")
    fix: Annotated[tuple[KnownFix, ...], Field(min_length=1), distinct("rule")]


@cache
def load_fixes() -> tuple[KnownFix, ...]:
    return load(MANIFEST, Fixes).fix


@cache
def words_of(rule: str) -> str:
    """What repairs a known fault."""
    return next(fix.words for fix in load_fixes() if fix.rule == rule)


def fix_for(
    operator: str,
    code: str,
    source: str = "",
    where: Literal["cpu", "builder"] = "cpu",
    *,
    reason: str = "",
) -> Suggestion:
    """What to write instead of an operator that the backend refuses for this reason; with `source`, FILE:LINE
    of the code, also the line as it should be."""
    for fix in load_fixes():
        if operator not in fix.operators or fix.where != where:
            continue
        if re.search(fix.code, code) and re.search(fix.reason, reason):
            return _at(fix, code, source)
    return Suggestion()


def fix_at(rule: str, code: str, source: str) -> Suggestion:
    """What to write at a line of the model."""
    return next((_at(fix, code, source) for fix in load_fixes() if fix.rule == rule), Suggestion())


def _at(fix: KnownFix, code: str, source: str) -> Suggestion:
    file, _, line = source.rpartition(":")
    if file and fix.find and (old := re.search(fix.find, code)):
        return Suggestion(fix.words, Edit(file, int(line), old[0], old.expand(fix.write)))
    return Suggestion(fix.words)
