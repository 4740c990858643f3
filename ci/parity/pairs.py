"""Compare Buck's build with CMake's, for one variant: the libraries of the mapping's pairs must have the same
files, flags and dependencies.

`compare` yields every difference with its place, and what is wrong within either build. What both builds
declare was read by `buck` and `cmake_targets`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from functools import partial

from ci.parity.buck_rules import TWIN
from ci.parity.mapping import Findings, MappedPair, Variant, any_of
from ci.parity.tree import (
    NamedItem,
    Side,
    Target,
    TreePlace,
    first_places,
    is_header,
    is_native,
    is_source,
    package_of,
)

_OF_THEIR_OWN = frozenset({"module", "executable"})
"""CMake's kinds of target that are part of no other: a pair's pattern does not match them."""

_PROGRAMS = frozenset({"executable", "shared"})
"""Kinds of CMake's targets of which no two are linked into one: each may compile a source for itself."""

_FLAGS = {"definitions": "parity-definition-differs", "options": "parity-option-differs"}


def linked_libraries(side: Side, library: Target) -> Iterator[Target]:
    """The libraries of which a library gets what they hand on: those it links, and what these hand on."""
    pending = [item.name for item in library.dependencies if item.scope != "INTERFACE"]
    names = {library.name}
    while pending:
        name = _twin_of(side, pending.pop())
        target = side.libraries.get(name) or side.outside.get(name)
        if name in names or target is None:
            continue
        names.add(name)
        yield target
        pending += [item.name for item in target.dependencies if item.scope != "PRIVATE"]


def reached_files(side: Side, library: Target) -> list[NamedItem]:
    """Files that a library gets from those it links."""
    return [
        item for target in linked_libraries(side, library) for item in target.files if item.scope != "PRIVATE"
    ]


def compare(findings: Findings, variant: Variant, bucks: Sequence[Side], cmake: Side) -> None:
    """Find all differences of one variant. What one of Buck's builders does not declare, another may."""
    for side in (*bucks, cmake):
        for trouble in side.troubles:
            findings.incomplete = True
            rule, place = "parity-not-evaluated", trouble.place
            words = {"why": trouble.why}
            findings.report(rule, place, trouble.construct, place.file, words, variant=variant.name)
        for item in side.missing_files:
            rule, name = "parity-missing-file", variant.name
            findings.report(rule, item.place, item.name, item.place.file, variant=name)
    if cmake.stopped or any(buck.failed for buck in bucks):
        findings.incomplete = True
    declared = {label for buck in bucks for label in buck.libraries}
    absent = _absent_labels(findings.mapping.pairs, bucks, cmake)
    for buck in bucks:
        _Comparison(findings, variant, buck, cmake, declared, absent).compare()


def _absent_labels(pairs: Sequence[MappedPair], bucks: Sequence[Side], cmake: Side) -> set[str]:
    """Return the labels of pairs that Buck has nothing of in this tree: it declares none of their labels,
    names none, and compiles none of the sources that CMake has for them."""
    libraries = [library for buck in bucks for library in buck.libraries.values()]
    compiled = {item.name for library in libraries for item in library.compiled}
    known = {library.name for library in libraries} | {item.name for buck in bucks for item in buck.labels}
    absent: set[str] = set()
    for pair in pairs:
        targets = [cmake.libraries[name] for name in pair.cmake if name in cmake.libraries]
        sources = {item.name for target in targets for item in target.compiled}
        if known.isdisjoint(pair.buck) and compiled.isdisjoint(sources):
            absent |= {*pair.buck}
    return absent


class _Comparison:
    """One of Buck's builders and CMake. `declared` has what any of the builders declares, `absent` the labels
    of pairs that Buck has nothing of."""

    def __init__(
        self,
        findings: Findings,
        variant: Variant,
        buck: Side,
        cmake: Side,
        declared: set[str],
        absent: set[str],
    ) -> None:
        self.findings, self.variant, self.buck, self.cmake = findings, variant, buck, cmake
        self.mapping, self.scope = findings.mapping, findings.mapping.scope
        self.report = partial(findings.report, variant=variant.name)
        free = [
            library.name
            for library in (*buck.libraries.values(), *cmake.libraries.values())
            if library.kind not in _OF_THEIR_OWN
            and (library.kind == "cxx_library" or self.scope.part(library.folder) == self.scope.root)
        ]
        self.resolved = self.mapping.resolved(free)
        of_others = declared - buck.libraries.keys()
        self.pairs = [
            pair
            for pair in self.resolved
            if variant.name in pair.variants
            and of_others.isdisjoint(pair.buck)
            and self._has(pair, declared)
            and self._is_in_buck(pair, absent)
        ]

    def _has(self, pair: MappedPair, declared: set[str]) -> bool:
        """Whether either build declares anything of a pair. Upstream may have made or removed it."""
        return not (declared.isdisjoint(pair.buck) and self.cmake.libraries.keys().isdisjoint(pair.cmake))

    def _is_in_buck(self, pair: MappedPair, absent: set[str]) -> bool:
        """Whether Buck has all parts of a pair; if not, a note says that it is not compared."""
        gaps = [name for name in pair.buck if name in absent]
        if gaps:
            self.findings.incomplete = True
            place = self.findings.place_of_pair(pair)
            self.report("parity-target-missing", place, gaps[0], pair.name, case="absent", note=True)
        return not gaps

    def compare(self) -> None:
        if not self.cmake.stopped:
            self._pairs()
            self._header_names()
        self._unmapped()
        elsewhere = {label for pair in self.resolved for label in pair.buck}
        labels = {label for pair in self.pairs for label in pair.buck}
        self._compiled_twice(self.buck, leave_out=elsewhere - labels)
        self._compiled_twice(self.cmake, leave_out=set())
        self._compiled_again()
        self._dependencies_and_flags_of_buck()

    def _pairs(self) -> None:
        evaluated = [pair for pair in self.pairs if not self._failed(pair)]
        for pair in evaluated:
            self._targets_exist(pair)
        # What follows from a target that is missing says nothing new.
        complete = [pair for pair in evaluated if not self._missing_targets(pair)]
        self.findings.incomplete = self.findings.incomplete or complete != self.pairs
        nodes = self._nodes(complete)
        for pair in complete:
            buck = [self.buck.libraries[name] for name in pair.buck]
            cmake = [self.cmake.libraries[name] for name in pair.cmake]
            self._files(pair, buck, cmake)
            self._dependencies(pair, buck, cmake, nodes)
            self._dependencies_within(pair, buck, cmake)
            self._flags(pair, buck, cmake)
            self._standards(pair, buck, cmake)
            self._platforms(pair, buck)

    def _failed(self, pair: MappedPair) -> bool:
        """Whether a package of the pair could not be evaluated."""
        return not self.buck.failed.isdisjoint(map(package_of, pair.buck))

    def _nodes(self, complete: Sequence[MappedPair]) -> dict[str, str]:
        """The pair that a target belongs to; empty for one that cannot be compared."""
        bad_nodes = {
            pair.node
            for pair in self.resolved
            if (self.variant.name in pair.variants and pair not in complete) or self._failed(pair)
        }
        return {
            target: "" if pair.node in bad_nodes else pair.node
            for pair in self.resolved
            for target in (*pair.buck, *pair.cmake)
        }

    # Targets

    def _missing_targets(self, pair: MappedPair) -> list[tuple[str, str]]:
        """Names that a build does not declare, each with the build."""
        sides = ("Buck", pair.buck, self.buck), ("CMake", pair.cmake, self.cmake)
        return [(name, build) for build, names, side in sides for name in names if name not in side.libraries]

    def _targets_exist(self, pair: MappedPair) -> None:
        rule, place = "parity-target-missing", self.findings.place_of_pair(pair)
        for name, build in self._missing_targets(pair):
            self.report(rule, place, name, pair.name, {"build": build})

    def _unmapped(self) -> None:
        names = {name for pair in self.resolved for name in (*pair.buck, *pair.cmake)}
        alone = [name for entry in self.mapping.alone for name in (*entry.buck, *entry.cmake)]
        for side, build in ((self.buck, "Buck"), (self.cmake, "CMake")):
            for library in side.libraries.values():
                is_mapped = library.name in names or any_of(library.name, alone)
                if not is_mapped and self._native(library):
                    self.report("parity-unmapped-target", library.place, library.name, build)

    # Files

    def _native(self, library: Target) -> list[NamedItem]:
        return [item for item in library.files if is_native(item.name) and self.scope.holds(item.name)]

    def _files(self, pair: MappedPair, buck: Sequence[Target], cmake: Sequence[Target]) -> None:
        in_buck = first_places(item for library in buck for item in self._native(library))
        in_cmake = first_places(item for library in cmake for item in self._native(library))
        for path in sorted(in_cmake.keys() - in_buck.keys()):
            owners = [library for library in buck if path.startswith(f"{library.folder}/")]
            words = {"lacking": _lack(pair.buck), "file": (owners or buck)[0].place.file}
            self.report("parity-missing-in-buck", in_cmake[path], path, pair.name, words)
        reach = [item.name for library in cmake for item in library.includes]
        for path in sorted(in_buck.keys() - in_cmake.keys()):
            if is_header(path) and any(not folder or path.startswith(f"{folder}/") for folder in reach):
                continue
            owner = next(library.name for library in buck if path in first_places(library.files))
            self.report("parity-missing-in-cmake", in_buck[path], path, pair.name, {"library": owner})

    def _compiled_twice(self, side: Side, leave_out: set[str]) -> None:
        first: dict[str, Target] = {}
        for library in side.libraries.values():
            if library.name in leave_out:
                continue
            names: set[str] = set()
            for item in library.compiled:
                if item.name in names and side is self.buck:
                    self.report("parity-listed-twice", item.place, item.name, library.name)
                names.add(item.name)
            for path, place in first_places(library.compiled).items():
                owner = first.setdefault(path, library)
                if owner is not library:
                    words = {"how": f"in {owner.name} and again in {library.name}"}
                    note = not _PROGRAMS.isdisjoint((library.kind, owner.kind))
                    rule, both = "parity-compiled-twice", (owner.name, library.name)
                    self.report(rule, place, path, library.name, words, note=note, values=both)

    def _compiled_again(self) -> None:
        """Sources that a library passes on to its users are compiled again there."""
        for library in self.cmake.libraries.values():
            for item in reached_files(self.cmake, library) if library.kind != "interface" else ():
                if is_source(item.name):
                    words = {"how": f"{item.scope} here, so again in {library.name}"}
                    rule, names = "parity-compiled-twice", (library.name, item.scope)
                    self.report(rule, item.place, item.name, library.name, words, values=names)

    def _header_names(self) -> None:
        """Headers that Buck gives out by a name that none of CMake's include directories gives them."""
        rule = "parity-header-renamed"
        folders = {item.name for library in self.cmake.libraries.values() for item in library.includes}
        for library in self.buck.libraries.values():
            wrong = {}
            for alias, item in library.included.items():
                if item.name not in {posixpath.join(folder, alias) for folder in folders}:
                    wrong[alias] = item
            headers = sum(is_header(item.name) for item in library.files)
            if len(wrong) == headers > 1:
                # One cause: the namespace, or that there is none.
                alias, item = next(iter(wrong.items()))
                place = library.namespace or library.place
                words = {"alias": alias, "header": item.name, "count": headers}
                self.report(rule, place, "header_namespace", library.name, words, case="namespace")
                continue
            for alias, item in wrong.items():
                self.report(rule, item.place, item.name, library.name, {"alias": alias})

    # Dependencies

    def _dependencies(
        self,
        pair: MappedPair,
        buck: Sequence[Target],
        cmake: Sequence[Target],
        nodes: MappingOf[str, str],
    ) -> None:
        left_out = {entry.name for entry in self.mapping.dependencies if not (entry.buck and entry.cmake)}
        left_out |= {"", pair.node}
        sides: list[dict[str, list[NamedItem]]] = []
        for libraries, side, build in ((buck, self.buck, "Buck"), (cmake, self.cmake, "CMake")):
            linked_nodes: dict[str, list[NamedItem]] = {}
            for item in (item for library in libraries for item in library.dependencies):
                name = _twin_of(side, item.name)
                node = pair.node if name in (*pair.buck, *pair.cmake) else nodes.get(name)
                node = self.findings.node_of(name) if node is None else node
                if node is None:
                    self.report(
                        "parity-dependency-unmapped", item.place, item.name, pair.name, {"build": build}
                    )
                elif node not in left_out:
                    linked_nodes.setdefault(node, []).append(item)
            sides.append(linked_nodes)
        in_buck, in_cmake = sides
        for node in sorted(in_cmake.keys() - in_buck.keys()):
            items, rule = in_cmake[node], "parity-dependency-missing-in-buck"
            names = _names(items)
            words = {"name": ", ".join(names), "lacking": _lack(pair.buck), "file": buck[0].place.file}
            self.report(rule, items[0].place, node, pair.name, words, values=names)
        for node in sorted(in_buck.keys() - in_cmake.keys()):
            items, rule = in_buck[node], "parity-dependency-missing-in-cmake"
            names = _names(items)
            self.report(rule, items[0].place, node, pair.name, {"name": ", ".join(names)}, values=names)
            self._sources_instead(pair, cmake, node)

    def _sources_instead(self, pair: MappedPair, cmake: Sequence[Target], node: str) -> None:
        """Report sources that CMake should compile in place of a dependency, and does not."""
        compiled = {item.name for library in cmake for item in library.compiled}
        for entry in self.mapping.deliberate:
            rule = "parity-dependency-missing-in-cmake"
            for path in entry.instead if entry.covering(rule, node, pair.name, ()) else ():
                if path not in compiled:
                    place, words = cmake[0].place, {"dependency": node}
                    self.report("parity-missing-in-cmake", place, path, pair.name, words, case="instead")

    def _dependencies_within(self, pair: MappedPair, buck: Sequence[Target], cmake: Sequence[Target]) -> None:
        """Find dependencies between the Buck libraries of one pair, by their files: CMake links them where
        Buck has one library for several of its targets."""
        owner = {item.name: library.name for library in buck for item in library.compiled}
        part: dict[str, set[str]] = {}
        for library in cmake:
            part[library.name] = {owner[item.name] for item in library.compiled if item.name in owner}
        depends: dict[str, set[str]] = {}
        for library in buck:
            depends[library.name] = {_twin_of(self.buck, item.name) for item in library.dependencies}
        gaps: dict[tuple[str, str], NamedItem] = {}
        for library in cmake:
            for item in library.dependencies:
                for dependent in sorted(part[library.name]):
                    for dependency in part.get(item.name, set()) - {dependent} - depends[dependent]:
                        gaps.setdefault((dependent, dependency), item)
        for (dependent, dependency), item in gaps.items():
            words = {"name": item.name, "dependent": dependent}
            rule = "parity-dependency-missing-in-buck"
            self.report(rule, item.place, dependency, pair.name, words, case="within")

    def _dependencies_and_flags_of_buck(self) -> None:
        """Dependencies that only a few may have, and directories that -I flags name: these begin wherever the
        project that builds has its root."""
        for library in self.buck.libraries.values():
            for rule in self.mapping.heavy:
                for item in library.dependencies if not any_of(library.name, rule.allowed) else ():
                    if any_of(item.name, rule.dependencies):
                        heavy, words = "parity-heavy-dependency", {"reason": rule.reason}
                        self.report(heavy, item.place, item.name, library.name, words, note=True)
            for item in library.options:
                if item.name.startswith("-I") and "$(" not in item.name:
                    self.report("parity-include-flag", item.place, item.name, library.name)

    # Flags

    def _flags(self, pair: MappedPair, buck: Sequence[Target], cmake: Sequence[Target]) -> None:
        for kind, rule in _FLAGS.items():
            of_buck = self._flags_of(self.buck, buck, kind)
            of_cmake = self._flags_of(self.cmake, cmake, kind)
            for name in sorted(of_buck.keys() ^ of_cmake.keys()):
                place, note = of_buck.get(name) or of_cmake[name], name.startswith("-W")
                sides = has_and_lacks(name in of_buck)
                self.report(rule, place, name, pair.name, sides, note=note, values=(sides["has"],))
        in_buck = [library.archive for library in buck if library.archive]
        in_cmake = [library.archive for library in cmake if library.archive]
        if bool(in_buck) != bool(in_cmake):
            place, words = (in_buck or in_cmake)[0], has_and_lacks(bool(in_buck))
            self.report("parity-whole-archive-differs", place, "link_whole", pair.name, words)

    def _handed_on(self, side: Side, library: Target, kind: str) -> Iterator[NamedItem]:
        """The `definitions` or `options` that a library gets from libraries of no pair."""
        names = {name for pair in self.pairs for name in (*pair.buck, *pair.cmake)}
        for target in linked_libraries(side, library):
            for item in getattr(target, kind) if target.name not in names else ():
                # What one project says of another's library is for itself alone.
                near = self.scope.part(item.place.file) == self.scope.part(library.folder)
                if item.scope != "PRIVATE" and (near or target.name in side.libraries):
                    yield item

    def _flags_of(self, side: Side, libraries: Sequence[Target], kind: str) -> dict[str, TreePlace]:
        """The flags of one kind that these libraries have or hand on, without include folders."""
        flags: list[NamedItem] = []
        for library in libraries:
            flags += getattr(library, kind)
            flags += self._handed_on(side, library, kind)
        return first_places(flag for flag in flags if not flag.name.startswith("-I"))

    def _standards(self, pair: MappedPair, buck: Sequence[Target], cmake: Sequence[Target]) -> None:
        """The standard that each source of both is compiled by."""
        in_buck, in_cmake = _standards_in(buck), _standards_in(cmake)
        for path in sorted(in_buck.keys() & in_cmake.keys()):
            one, other = in_buck[path], in_cmake[path]
            if one.name != other.name:
                # Where .buckconfig says it for all, the line to look at is CMake's.
                place = other.place if one.place.file == ".buckconfig" else one.place
                words = {"buck": one.place, "other": other.name, "cmake": other.place}
                self.report("parity-standard-differs", place, one.name, pair.name, words)

    def _platforms(self, pair: MappedPair, buck: Sequence[Target]) -> None:
        platform = self.variant.platform
        for library in buck:
            if library.platforms and platform and platform not in library.platforms:
                words = {"platforms": ", ".join(library.platforms), "pair": pair.name}
                self.report("parity-platforms-differ", library.place, platform, library.name, words)


def _twin_of(side: Side, name: str) -> str:
    """The library that a label means: its own, or the one it is a twin of."""
    if name in side.libraries or not name.startswith("//"):
        return name
    return name.removesuffix(TWIN)


def has_and_lacks(buck_has_it: bool) -> dict[str, str]:
    return {"has": "Buck", "lacks": "CMake"} if buck_has_it else {"has": "CMake", "lacks": "Buck"}


def _names(items: Sequence[NamedItem]) -> tuple[str, ...]:
    return tuple(sorted({item.name.removesuffix(TWIN) for item in items}))


def _lack(labels: tuple[str, ...]) -> str:
    return f"{labels[0]} lacks" if len(labels) == 1 else f"{' and '.join(labels)} lack"


def _standards_in(libraries: Sequence[Target]) -> dict[str, NamedItem]:
    """Map each compiled source to the standard that its library names."""
    return {
        item.name: library.standard for library in libraries for item in library.compiled if library.standard
    }
