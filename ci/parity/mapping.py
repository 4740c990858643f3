"""manifests/parity.toml: which Buck targets stand for which CMake targets, and what differs on purpose. The
differences that it does not explain, each once, with the entries that nothing needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints, ValidationError, model_validator

from ci.parity.tree import Tree, TreePlace
from provisioning.base.documents import Model, Name, load
from provisioning.base.errors import ManifestError
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.base.toml_lines import line_of

MAPPING = MANIFESTS / "parity.toml"
_ACCEPTED = "parity.accepted.json"

Reason = Annotated[str, StringConstraints(min_length=10)]
Label = Annotated[str, StringConstraints(pattern=r"^//[^:]*:[^:/]+$")]
Value: TypeAlias = str | bool | dict[str, str] | list[str | bool]
Rule = Annotated[str, StringConstraints(pattern=r"^parity-[a-z-]+$")]


MACROS = "targets.bzl"
"""A package's library of macros."""

_OF_PATTERNS = frozenset({"parity-glob-empty", "parity-exclude-empty"})


def any_of(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Scope(Model):
    """The files of the tree that are checked."""

    root: str
    also: tuple[str, ...] = ()
    """More directories, such as that of the examples."""
    suffixes: Annotated[tuple[str, ...], Field(min_length=1)]
    other_builds: tuple[str, ...] = ()
    """Names of build files that may be neither Buck's nor of the CMake projects: a file that one names is
    known."""

    @property
    def roots(self) -> tuple[str, ...]:
        return (self.root, *self.also)

    def holds(self, path: str) -> bool:
        return self.part(path) is not None

    def part(self, path: str) -> str | None:
        """The root that a file or a directory is below; None outside them."""
        return next((root for root in self.roots if f"{path}/".startswith(f"{root}/")), None)


class Load(Model):
    """The symbols that a `load()` of a file outside the tree gives, by their meaning here."""

    label: str
    rules: tuple[str, ...] = ()
    """Structs of rule functions, such as `runtime`: every call is recorded."""
    calls: tuple[str, ...] = ()
    """Functions that call their `_kind` argument with the other arguments."""
    answers: dict[str, Value] = Field(default_factory=dict)
    """Functions that always give the same answer."""
    asks: tuple[str, ...] = ()
    """Functions whose answer depends on who builds, such as `is_fbcode`: see `Buck.builders`."""
    values: dict[str, str | bool] = Field(default_factory=dict)


class Buck(Model):
    files: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the files that declare targets. If a directory has several, all are evaluated."""
    entry: str
    """The function that is called if a directory has only a library of macros (targets.bzl)."""
    cells: dict[str, str]
    """Prefixes of labels in the tree, and the folder where they begin."""
    rules: Annotated[tuple[str, ...], Field(min_length=1)]
    """Rule functions that declare a library of files."""
    other_rules: tuple[str, ...]
    """Rule functions whose files are compiled into no library: they must exist, and labels may name them."""
    namespace: str = ""
    """What includes have before the path of a header in the tree."""
    texts: tuple[str, ...] = ()
    """Functions of the struct of rules that only make text."""
    loads: tuple[Load, ...] = ()
    builders: Annotated[tuple[dict[str, bool], ...], Field(min_length=1)]
    """Each entry is one who runs Buck: what `is_oss` of the struct of rules is for it, and what functions
    that ask answer it."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the files that make a directory a package."""
        return frozenset({*self.files, MACROS})


class CMake(Model):
    entry: str
    also: tuple[str, ...] = ()
    """More files like `entry`, such as that of the examples."""
    includes: tuple[str, ...] = ()
    """Files that the project above includes before them, for the functions that they define."""
    lists: str | None = None
    """A Starlark file of lists, which CMake's files print by `';'.join(NAME)`."""
    targets: tuple[str, ...] = ()
    """Targets of other projects that the files use on every platform."""
    shared: tuple[str, ...] = ()
    """Targets of other projects that are shared libraries: some functions take no others."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Variables that are set for every variant: values from a project above, a toolchain file or CMake
    itself."""
    ignored_commands: tuple[str, ...] = ()
    """Commands of projects outside the tree; none changes what a target consists of."""
    outside: tuple[str, ...] = ()
    """Directories of other projects that add_subdirectory names."""


class Variant(Model):
    name: Name
    summary: str
    also: tuple[str, ...] = ()
    """More files like CMake's `entry`, for this platform alone."""
    targets: tuple[str, ...] = ()
    """Targets of other projects that CMake's files ask for by `if(TARGET …)`."""
    cmake: dict[str, str]
    select: tuple[str, ...]
    """Buck's constraints that are true; a branch for one that no variant names is reported."""
    platform: str | None = None
    """The variant's name in Buck's `platforms`; libraries that name only others are not built for it."""
    named_by: str | None = None
    """What the CMake files of the checked folders say of it: a tree that does not is not built for it."""

    def is_of(self, texts: Iterable[str]) -> bool:
        """Whether a tree with these CMake files is built for this variant."""
        return self.named_by is None or any(re.search(self.named_by, text) for text in texts)


class MappedPair(Model):
    name: Name
    buck: Annotated[tuple[Label, ...], Field(min_length=1)]
    """Names of libraries, or patterns for all libraries that nothing else in the mapping names."""
    cmake: tuple[str, ...] = ()
    like: Name | None = None
    """The pair with the same CMake targets on other variants, named instead of `cmake`."""
    variants: Annotated[tuple[Name, ...], Field(min_length=1)]

    @property
    def node(self) -> str:
        """What the pair is as a dependency of others: one thing with those that it is like."""
        return f"pair {self.like or self.name}"

    def within(self, variants: set[str]) -> MappedPair:
        """The pair on those of its variants that there are."""
        names = tuple(name for name in self.variants if name in variants)
        return self.model_copy(update={"variants": names})

    @model_validator(mode="after")
    def _has_targets(self) -> MappedPair:
        if bool(self.cmake) == bool(self.like):
            raise ValueError("either cmake or like")
        return self


class Alone(Model):
    """Targets that only one of the builds has; names, or patterns for those that no pair names."""

    buck: tuple[Label, ...] = ()
    cmake: tuple[str, ...] = ()
    reason: Reason


class Dependency(Model):
    """A library outside the pairs, with the names (or patterns) that each build has for it.

    One with names on one side only is an intended difference, so it has a reason."""

    name: Name
    buck: tuple[str, ...] = ()
    cmake: tuple[str, ...] = ()
    reason: Reason | None = None

    @model_validator(mode="after")
    def _explained(self) -> Dependency:
        if not (self.buck or self.cmake):
            raise ValueError("names in buck or in cmake")
        if not (self.buck and self.cmake) and self.reason is None:
            raise ValueError("a reason, for only one build has it")
        return self


class Listed(Model):
    """A folder of which another build takes every file, and Buck those that it lists."""

    folder: str
    suffixes: Annotated[tuple[str, ...], Field(min_length=1)]
    without_code: tuple[str, ...] = ()
    """Names of files that nobody misses."""
    build: str
    """What takes every file, such as Gradle."""


class Heavy(Model):
    """Dependencies that only the named libraries may have."""

    dependencies: Annotated[tuple[str, ...], Field(min_length=1)]
    allowed: tuple[Label, ...] = ()
    reason: Reason


class Deliberate(Model):
    """An intended difference. If no finding needs it any more, that is a note."""

    rule: Rule
    what: str | tuple[str, ...]
    """The files or dependencies of findings; `*` matches anything. A pattern of a build file is written as it
    stands there."""
    where: str = "*"
    """The pair, library or file it is about."""
    variants: tuple[Name, ...] = ()
    """The only variants that it may hold for; all by default."""
    if_exists: str | None = None
    """A file or directory: in a tree without it, nobody misses the difference."""
    instead: tuple[str, ...] = ()
    """Sources that CMake compiles in place of a dependency: the difference is meant only while it does."""
    also_new: bool = False
    """Whether differences that nobody has accepted are meant too: nothing is built of their files."""
    reason: Reason

    @property
    def names(self) -> tuple[str, ...]:
        return (self.what,) if isinstance(self.what, str) else self.what

    def covering(self, rule: str, what: str, where: str, variants: Iterable[str]) -> str | None:
        """Return which of the entry's names covers the difference, if any."""
        if self.rule != rule or not fnmatchcase(where, self.where):
            return None
        if self.variants and not {*variants} <= {*self.variants}:
            return None
        # Read as a pattern, it would cover every pattern below its directory.
        exact = rule in _OF_PATTERNS
        return next(
            (name for name in self.names if what == name or (not exact and fnmatchcase(what, name))), None
        )


class Accepted(Model):
    """The differences that stood when `--accept` was typed, and that an entry of the mapping explains. A new
    one of the same kind is an error."""

    schema_: Literal[1] = Field(alias="schema")
    differences: dict[str, tuple[str, ...]]
    """The values that differ, and the variants."""

    def holds(self, difference: Difference) -> bool:
        accepted = self.differences.get(difference.key)
        return accepted is not None and {*difference.values, *difference.variants} <= {*accepted}


class Mapping(Model):
    schema_: Literal[1] = Field(alias="schema")
    accepted: str | None = None
    """The file of accepted differences, beside this one; without it every entry covers new ones too."""
    scope: Scope
    buck: Buck
    cmake: CMake
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]
    pairs: tuple[MappedPair, ...]
    alone: tuple[Alone, ...] = ()
    dependencies: tuple[Dependency, ...] = ()
    listed: tuple[Listed, ...] = ()
    heavy: tuple[Heavy, ...] = ()
    deliberate: tuple[Deliberate, ...] = ()

    @model_validator(mode="after")
    def _variants_exist(self) -> Mapping:
        variants = {variant.name for variant in self.variants}
        for pair in self.pairs:
            for name in pair.variants:
                if name not in variants:
                    raise ValueError(f"variants of pair {pair.name} among {sorted(variants)}, not {name!r}")
        own = {pair.name for pair in self.pairs if pair.cmake}
        for pair in self.pairs:
            if pair.like is not None and pair.like not in own:
                raise ValueError(f"pair {pair.name} like one of {sorted(own)}, not {pair.like!r}")
        return self

    @property
    def names(self) -> set[str]:
        """Every target that an entry names."""
        entries: tuple[MappedPair | Alone | Dependency, ...] = (*self.pairs, *self.alone, *self.dependencies)
        return {name for entry in entries for name in (*entry.buck, *entry.cmake)}

    def fitted(self, tree: Tree) -> Mapping:
        """Return this mapping with the variants that the tree's own CMake files define, and no others."""
        root = self.scope.root
        paths = [path for path in tree.under(root) if path.endswith((".cmake", "CMakeLists.txt"))]
        texts = [re.sub("#.*", "", tree.read(path)) for path in paths]
        variants = tuple(variant for variant in self.variants if variant.is_of(texts))
        names = {variant.name for variant in variants}
        pairs = tuple(pair.within(names) for pair in self.pairs)
        deliberate = tuple(row for row in self.deliberate if not row.variants or names & {*row.variants})
        return self.model_copy(update={"variants": variants, "pairs": pairs, "deliberate": deliberate})

    def resolved(self, libraries: Iterable[str]) -> tuple[MappedPair, ...]:
        """The pairs with patterns replaced by the libraries that they stand for."""
        free = sorted(set(libraries) - self.names)

        def targets(names: tuple[str, ...], pool: list[str]) -> tuple[str, ...]:
            members: list[str] = []
            for name in names:
                members += matching(pool, name) if "*" in name else [name]
            return tuple(members) or names

        of_buck = [name for name in free if name.startswith("//")]
        of_cmake = [name for name in free if not name.startswith("//")]
        return tuple(
            pair.model_copy(
                update={"buck": targets(pair.buck, of_buck), "cmake": targets(pair.cmake, of_cmake)}
            )
            for pair in self.pairs
        )


def load_mapping(path: Path = MAPPING) -> Mapping:
    mapping = load(path, Mapping)
    targets = {pair.name: pair.cmake for pair in mapping.pairs}
    pairs = tuple(
        pair.model_copy(update={"cmake": targets[pair.like]}) if pair.like else pair for pair in mapping.pairs
    )
    return mapping.model_copy(update={"pairs": pairs})


def load_accepted(mapping: Mapping, file: Path) -> Accepted | None:
    """Return what was accepted for a mapping, which is that file; None if it names no such file."""
    if mapping.accepted is None:
        return None
    path = file.parent / mapping.accepted
    try:
        return Accepted.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        expected = "a file of `buck_parity --accept`"
        raise ManifestError(path, "(file)", expected=expected, found=str(error).splitlines()[0]) from error


def save_accepted(mapping: Mapping, file: Path, differences: Iterable[Difference]) -> None:
    """Add what stands in a tree and is explained to what is accepted."""
    path = file.parent / (mapping.accepted or _ACCEPTED)
    before = load_accepted(mapping, file) if path.is_file() else None
    rows = {key: {*values} for key, values in before.differences.items()} if before else {}
    for row in differences:
        rows.setdefault(row.key, set()).update(row.values, row.variants)
    lines = [f"  {json.dumps(key)}: {json.dumps(sorted(values))}" for key, values in sorted(rows.items())]
    differing = ",\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, f'{{\n "schema": 1,\n "differences": {{\n{differing}\n }}\n}}\n')


ROOTS = ("parity-not-evaluated", "parity-target-missing")
"""Rules whose findings explain others, and so come first."""
_NO_WORDS: MappingOf[str, object] = MappingProxyType({})


class ParityCase(Model):
    """A finding's words, with {what}, {where}, {variant}, {mapping} and those of the rule's check."""

    message: str
    fix: str


class ParityText(ParityCase):
    summary: str
    case: dict[str, ParityCase] = Field(default_factory=dict)
    """Words in place of the rule's own, where its check says so."""


class ParityTexts(Model):
    schema_: Literal[1] = Field(alias="schema")
    rule: dict[str, ParityText]


@cache
def parity_texts() -> dict[str, ParityText]:
    return load(MANIFESTS / "parity_checks.toml", ParityTexts).rule


@dataclass(slots=True)
class Difference:
    """What and where identify it: a file, pattern or dependency, in a pair, library or file."""

    rule: str
    place: TreePlace
    what: str
    where: str
    message: str
    fix: str
    note: bool = False
    """Whether it is only worth knowing, and no error."""
    variants: list[str] = field(default_factory=list)
    values: set[str] = field(default_factory=set)
    """What differs: the build that has it, the libraries' names."""

    @property
    def key(self) -> str:
        """The name of the difference, which does not depend on lines and on the order of libraries."""
        where = "" if self.rule == "parity-compiled-twice" else f" in {self.where}"
        return f"{self.rule} {self.what}{where}"


class Findings:
    """Collects differences, those of several variants once, and leaves out intended ones."""

    def __init__(self, mapping: Mapping, file: Path, accepted: Accepted | None) -> None:
        self.mapping, self.file, self.accepted = mapping, file.absolute(), accepted
        self.explained: list[Difference] = []
        """Differences that an entry explains, also those that nobody has accepted."""
        inside = self.file.is_relative_to(ROOT)
        self.name = self.file.relative_to(ROOT).as_posix() if inside else str(file)
        self._differences: dict[tuple[str, TreePlace, str, str], Difference] = {}
        self._dependencies: dict[str, str | None] = {}
        """Maps each name that was asked for to the entry of the mapping that it belongs to."""
        self.incomplete = False
        """Whether something was not evaluated, so that entries may seem unused although they are not."""

    def report(
        self,
        rule: str,
        place: TreePlace,
        what: str,
        where: str,
        words: MappingOf[str, object] = _NO_WORDS,
        *,
        case: str = "",
        variant: str = "",
        note: bool = False,
        values: tuple[str, ...] = (),
    ) -> None:
        """Report a difference. `words` complete the text of the rule, or of one of its cases."""
        text = parity_texts()[rule].case[case] if case else parity_texts()[rule]
        own = {"what": what, "where": where, "variant": variant, "mapping": self.name, **words}
        message, fix = text.message.format(**own), text.fix.format(**own)
        key = rule, place, what, where
        difference = self._differences.setdefault(key, Difference(*key, message, fix, note))
        difference.values |= {*values}
        if variant and variant not in difference.variants:
            difference.variants.append(variant)

    def report_stale(self, table: str, position: int, what: str, why: str) -> None:
        """Report an entry of the mapping that nothing needs. Somebody's clean-up is no error."""
        place = self.place(table, position)
        self.report("parity-stale-entry", place, what, table, {"why": why}, note=True)

    def place(self, table: str, position: int) -> TreePlace:
        """Return the line of an entry of the mapping, which is an item of `[[table]]`."""
        return TreePlace(self.name, line_of((table, position), self.file) or 1)

    def place_of_pair(self, pair: MappedPair) -> TreePlace:
        return self.place("pairs", [entry.name for entry in self.mapping.pairs].index(pair.name))

    def node_of(self, name: str) -> str | None:
        """Return the `[[dependencies]]` that names it, or has a pattern for it."""
        if name not in self._dependencies:
            entries = (
                entry.name for entry in self.mapping.dependencies if any_of(name, (*entry.buck, *entry.cmake))
            )
            self._dependencies[name] = next(entries, None)
        return self._dependencies[name]

    def settled(self, tree: Tree) -> tuple[Difference, ...]:
        uses: set[tuple[int, str]] = set()
        for key, row in [*self._differences.items()]:
            covering = {
                (position, name)
                for position, entry in enumerate(self.mapping.deliberate)
                if (name := entry.covering(row.rule, row.what, row.where, row.variants))
            }
            uses |= covering
            if covering and not any(self.mapping.deliberate[position].also_new for position, _ in covering):
                self.explained.append(row)
            if any(self._is_meant(self.mapping.deliberate[position], row) for position, _ in covering):
                del self._differences[key]
            elif covering:
                row.fix += f"; {self.name} explains others of its kind: if it is meant too, type --accept"
        if not self.incomplete:
            self._report_unused(tree, uses)
        rest = self._differences.values()
        return tuple(
            sorted(rest, key=lambda item: (item.rule not in ROOTS, item.place, item.rule, item.what))
        )

    def _is_meant(self, entry: Deliberate, difference: Difference) -> bool:
        return entry.also_new or self.accepted is None or self.accepted.holds(difference)

    def _report_unused(self, tree: Tree, uses: set[tuple[int, str]]) -> None:
        for position, entry in enumerate(self.mapping.deliberate):
            if entry.if_exists is None or {entry.if_exists} & (tree.files | tree.directories):
                for name in entry.names:
                    if (position, name) not in uses:
                        subject = f"{entry.rule} of {name}"
                        self.report_stale("deliberate", position, subject, "no finding needs it")
        for position, dependency in enumerate(self.mapping.dependencies):
            patterns = (*dependency.buck, *dependency.cmake)
            if not any(any_of(name, patterns) for name in self._dependencies):
                why = "no mapped library depends on it"
                self.report_stale("dependencies", position, dependency.name, why)
