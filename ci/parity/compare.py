"""Where the two sides differ, and what is wrong within either."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from ci.parity.buck import TWIN, duplicates, named_by, twins
from ci.parity.differences import Findings
from ci.parity.mapping import MACROS, MappedPair, Mapping, Scope, Variant
from ci.parity.model import (
    SCHEMAS,
    GeneratingRule,
    Glob,
    Library,
    NamedItem,
    Side,
    TreePlace,
    first_places,
    is_header,
    is_native,
    is_python,
    is_source,
    package_of,
)
from ci.parity.tree import Tree, is_left_out

OF_THEIR_OWN = frozenset({"module", "executable"})
"""CMake's kinds of target that are part of no other: a pair's pattern does not match them."""

_PROGRAMS = frozenset({"executable", "shared"})
"""Kinds of CMake's targets of which no two are linked into one: each may compile a source for itself."""


def linked(side: Side, library: Library) -> Iterator[Library]:
    """The libraries of which a library gets what they hand on: those it links, and what these hand on."""
    pending = [item.name for item in library.dependencies if item.scope != "INTERFACE"]
    seen = {library.name}
    while pending:
        name = _twin_of(side, pending.pop())
        other = side.libraries.get(name) or side.outside.get(name)
        if name in seen or other is None:
            continue
        seen.add(name)
        yield other
        pending += [item.name for item in other.dependencies if item.scope != "PRIVATE"]


def reached(side: Side, library: Library) -> list[NamedItem]:
    """Files that a library gets from those it links."""
    return [item for other in linked(side, library) for item in other.files if item.scope != "PRIVATE"]


def variant(findings: Findings, variant: Variant, bucks: Sequence[Side], cmake: Side) -> None:
    """All findings of one variant. What one of Buck's builders does not declare, another may."""
    name = variant.name
    for side in (*bucks, cmake):
        for trouble in side.troubles:
            findings.incomplete = True
            place = trouble.place
            findings.report("parity-not-evaluated", place, trouble.what, place.file, name, why=trouble.why)
        for item in side.missing:
            findings.report("parity-missing-file", item.place, item.name, item.place.file, name)
    if cmake.stopped or any(buck.failed for buck in bucks):
        findings.incomplete = True
    declared = {label for buck in bucks for label in buck.libraries}
    for buck in bucks:
        _builder(findings, variant, buck, declared, cmake)
    _compiled_twice(findings, name, cmake, leave_out=set())
    _compiled_again(findings, name, cmake)


def _builder(findings: Findings, variant: Variant, buck: Side, declared: set[str], cmake: Side) -> None:
    """The findings of one of Buck's builders; `declared` has what any of them declares."""
    name, mapping = variant.name, findings.mapping
    free = [
        library.name
        for library in (*buck.libraries.values(), *cmake.libraries.values())
        if library.kind not in OF_THEIR_OWN
        and (library.kind == "cxx_library" or mapping.scope.part(library.folder) == mapping.scope.root)
    ]
    renamed = _renamed_targets(mapping, mapping.resolved(free, {}), buck, cmake, declared)
    resolved = mapping.resolved(free, {old: library.name for old, library in renamed.items()})
    pairs = [
        pair
        for pair in resolved
        if name in pair.variants
        and all(label in buck.libraries or label not in declared for label in pair.buck)
    ]
    if not cmake.stopped:
        evaluated = [
            pair for pair in pairs if not any(package_of(label) in buck.failed for label in pair.buck)
        ]
        for pair in evaluated:
            _targets_exist(findings, name, pair, renamed, buck, cmake)
        # What follows from a target that is missing says nothing new.
        complete = [pair for pair in evaluated if not _missing_targets(pair, buck, cmake)]
        findings.incomplete = findings.incomplete or complete != pairs
        broken = {
            pair.node
            for pair in resolved
            if (name in pair.variants and pair not in complete)
            or not {package_of(label) for label in pair.buck}.isdisjoint(buck.failed)
        }
        nodes = {
            target: "" if pair.node in broken else pair.node
            for pair in resolved
            for target in (*pair.buck, *pair.cmake)
        }
        nodes |= {old: nodes.get(library.name, "") for old, library in renamed.items()}
        for pair in complete:
            _files(findings, name, pair, buck, cmake)
            _dependencies(findings, name, pair, nodes, buck, cmake)
            _dependencies_within(findings, name, pair, buck, cmake)
            _flags(findings, name, pair, pairs, buck, cmake)
            _standards(findings, name, pair, buck, cmake)
            _platforms(findings, variant, pair, buck)
    _unmapped(findings, name, resolved, buck, cmake)
    elsewhere = {label for pair in resolved for label in pair.buck}
    here = {label for pair in pairs for label in pair.buck}
    _compiled_twice(findings, name, buck, leave_out=elsewhere - here)
    _heavy(findings, name, buck)
    _include_flags(findings, name, buck)
    if not cmake.stopped:
        _includes(findings, name, buck, cmake)


def tree(
    findings: Findings, tree: Tree, of_buck: MappingOf[str, Sequence[Side]], of_cmake: MappingOf[str, Side]
) -> None:
    """Findings that need all variants together."""
    bucks, cmakes = [side for sides in of_buck.values() for side in sides], list(of_cmake.values())
    sides = [*bucks, *cmakes]
    _globs(findings, [use for side in sides for use in side.globs])
    _alone(findings, sides)
    _labels(findings, tree, bucks)
    _packages(findings, tree, bucks)
    if any(side.stopped for side in sides):
        return
    _schemas(findings, bucks, cmakes)
    scope = findings.mapping.scope
    failed = {package for side in sides for package in side.failed}
    others = _other_builds(tree, scope, {folder for side in sides for folder in side.packages})
    known = {item.name for side in sides for library in side.libraries.values() for item in library.files}
    known |= {item.name for side in sides for item in side.named}
    known |= {item.name for side in sides for rule in side.generated for item in rule.inputs}
    included = _include_directories(findings, cmakes)
    unknown = [
        path
        for root in scope.roots
        for path in sorted(tree.under(root))
        if path not in known
        and path.endswith(scope.suffixes)
        and not any(path.startswith(f"{package}/") for package in failed)
    ]
    _unknown_modules(findings, tree, [path for path in unknown if is_python(path)], known)
    for path in unknown:
        place = next((place for folder, place in included.items() if path.startswith(f"{folder}/")), None)
        if is_header(path) and place is not None:
            findings.report(
                "parity-missing-in-buck",
                place,
                path,
                "tree",
                message=f"CMake reaches {path} by this include directory, and no Buck library names it",
                fix="name it in the exported_headers of its library, or delete it",
            )
        elif not is_python(path) and not any(_has(text, folder, path) for folder, text in others.items()):
            findings.report("parity-unknown-file", TreePlace(path, 1), path, "tree")
    _listed(findings, tree, known)


def _other_builds(tree: Tree, scope: Scope, evaluated: set[str]) -> dict[str, str]:
    """The texts of build files that nothing evaluated, such as a Makefile of an example, by directory."""
    paths = [path for root in scope.roots for path in tree.under(root)]
    return {
        folder: re.sub("#.*", "", tree.read(path))
        for path in paths
        if posixpath.basename(path) in scope.other_builds
        and (folder := posixpath.dirname(path)) not in evaluated
    }


def _has(text: str, folder: str, path: str) -> bool:
    """Whether a build file of this directory names the file, or all of its kind."""
    name = posixpath.basename(path)
    kind = re.escape(posixpath.splitext(name)[1])
    words = rf"(?<![\w.-])(?:{re.escape(name)}|\*{kind})(?![\w.-])"
    return path.startswith(f"{folder}/") and re.search(words, text) is not None


def _listed(findings: Findings, tree: Tree, known: set[str]) -> None:
    for position, entry in enumerate(findings.mapping.listed):
        files = [path for path in tree.under(entry.folder) if path.endswith(entry.suffixes)]
        if not files:
            findings.add(findings.stale("listed", position, entry.folder, "it holds no such file"))
        for path in files:
            if path not in known and posixpath.basename(path) not in entry.without_code:
                findings.report(
                    "parity-unknown-file",
                    TreePlace(path, 1),
                    path,
                    "tree",
                    message=f"{entry.build} builds {path}, and no Buck library has it",
                    fix="name it in the srcs of its library in the nearest BUCK, or delete it",
                )


def _include_directories(findings: Findings, cmakes: Sequence[Side]) -> dict[str, TreePlace]:
    """The directories below a root: CMake's targets can include any header there."""
    items = (item for side in cmakes for library in side.libraries.values() for item in library.includes)
    return first_places(item for item in items if findings.mapping.scope.holds(item.name))


def _unknown_modules(findings: Findings, tree: Tree, unknown: list[str], known: set[str]) -> None:
    """Only Buck lists Python files.

    A module that it does not list, in a folder with listed ones, was forgotten. A package with no listed
    module is one finding."""
    peopled = {""}
    for path in known:
        if is_python(path):
            peopled.update(_folders(path))
    beside = {posixpath.dirname(path) for path in known if is_python(path)}
    packages: dict[str, list[str]] = {}
    for path in unknown:
        if posixpath.basename(path) == "__init__.py" and not re.sub("#.*", "", tree.read(path)).strip():
            continue  # Buck creates these itself.
        if posixpath.dirname(path) in beside:
            findings.report(
                "parity-unknown-file",
                TreePlace(path, 1),
                path,
                "tree",
                message=f"no Buck library has {path}, though one has others of its directory",
                fix="name it in the library's srcs, or delete it",
            )
            continue
        folders = [folder for folder in _folders(path) if folder not in peopled]
        packages.setdefault(folders[-1] if folders else posixpath.dirname(path), []).append(path)
    for folder, paths in packages.items():
        deep = any(posixpath.dirname(path) != folder for path in paths)
        files = paths[0] if len(paths) == 1 else f"any of the {len(paths)} Python files of {folder}"
        findings.report(
            "parity-unknown-file",
            TreePlace(paths[0], 1),
            f"{folder}/{'**/' if deep else ''}*.py",
            "tree",
            message=f"no Buck library has {files}",
            fix="give them a library, or say in the mapping why they need none",
        )


def _folders(path: str) -> list[str]:
    """The directories that contain a file, the innermost first, without the top."""
    folders = []
    while path := posixpath.dirname(path):
        folders.append(path)
    return folders


def _renamed_targets(
    mapping: Mapping, pairs: Sequence[MappedPair], buck: Side, cmake: Side, declared: set[str]
) -> dict[str, Library]:
    """By its old name, what a pair's one missing target is now called.

    It is the library that the mapping does not name and that compiles most of what the pair lacks."""
    renamed: dict[str, Library] = {}
    for pair in pairs:
        both = (pair.buck, buck), (pair.cmake, cmake)
        for (names, side), (others, other) in (both, both[::-1]):
            gone = [name for name in names if name not in side.libraries and name not in declared]
            # A pattern of the pair may have taken the new name already.
            plain = [name for name in names if name in mapping.named]
            lacking = _compiled(_of(other, others)) - _compiled(_of(side, plain))
            for library in side.libraries.values() if len(gone) == 1 else ():
                own = _compiled([library])
                if library.name not in mapping.named and 2 * len(own & lacking) > len(own | lacking):
                    renamed[gone[0]] = library
    return renamed


def _compiled(libraries: Iterable[Library]) -> set[str]:
    return {item.name for library in libraries for item in library.compiled}


def _missing_targets(pair: MappedPair, buck: Side, cmake: Side) -> list[tuple[str, str]]:
    """Names that a build does not declare, each with the build."""
    both = ("Buck", pair.buck, buck), ("CMake", pair.cmake, cmake)
    return [(name, build) for build, names, side in both for name in names if name not in side.libraries]


def _targets_exist(
    findings: Findings,
    variant: str,
    pair: MappedPair,
    renamed: MappingOf[str, Library],
    buck: Side,
    cmake: Side,
) -> None:
    rule, mapped = "parity-target-missing", findings.mapping.pairs
    position = [target.name for target in mapped].index(pair.name)
    place = TreePlace(findings.source.name, findings.source.line("pairs", position))
    for name, build in _missing_targets(pair, buck, cmake):
        findings.report(rule, place, name, pair.name, variant, build=build)
    for name in (*mapped[position].buck, *mapped[position].cmake):
        if library := renamed.get(name):
            build = "Buck" if name.startswith("//") else "CMake"
            findings.report(
                rule,
                library.place,
                name,
                pair.name,
                variant,
                message=f"{build} declares no {name}: was it renamed to {library.name}?",
                fix=f"write {library.name} in {place}, or give it its old name",
            )


def _files(findings: Findings, variant: str, pair: MappedPair, buck: Side, cmake: Side) -> None:
    in_buck, in_cmake = (
        first_places(item for library in _of(side, names) for item in _native(findings, library))
        for side, names in ((buck, pair.buck), (cmake, pair.cmake))
    )
    for path in sorted(in_cmake.keys() - in_buck.keys()):
        findings.report(
            "parity-missing-in-buck",
            in_cmake[path],
            path,
            pair.name,
            variant,
            lacking=_lack(pair.buck),
            file=_file_for(path, pair, buck),
        )
    reach = [item.name for library in _of(cmake, pair.cmake) for item in library.includes]
    for path in sorted(in_buck.keys() - in_cmake.keys()):
        if is_header(path) and any(not folder or path.startswith(f"{folder}/") for folder in reach):
            continue
        owner = next(
            library.name
            for library in _of(buck, pair.buck)
            if any(item.name == path for item in library.files)
        )
        findings.report("parity-missing-in-cmake", in_buck[path], path, pair.name, variant, library=owner)


def _native(findings: Findings, library: Library) -> list[NamedItem]:
    scope = findings.mapping.scope
    return [item for item in library.files if is_native(item.name) and scope.holds(item.name)]


def _dependencies(
    findings: Findings,
    variant: str,
    pair: MappedPair,
    nodes: MappingOf[str, str],
    buck: Side,
    cmake: Side,
) -> None:
    """`nodes` are the pairs that targets belong to; empty for those that cannot be compared."""
    left_out = {entry.name for entry in findings.mapping.dependencies if not (entry.buck and entry.cmake)}
    left_out |= {"", pair.node}
    sides: list[dict[str, NamedItem]] = []
    for names, side, build in ((pair.buck, buck, "Buck"), (pair.cmake, cmake, "CMake")):
        linked: dict[str, NamedItem] = {}
        for item in (item for library in _of(side, names) for item in library.dependencies):
            known = _twin_of(side, item.name)
            node = pair.node if known in (*pair.buck, *pair.cmake) else nodes.get(known)
            node = findings.node_of(known) if node is None else node
            if node is None:
                rule = "parity-dependency-unmapped"
                findings.report(rule, item.place, item.name, pair.name, variant, build=build)
            elif node not in left_out:
                linked.setdefault(node, item)
        sides.append(linked)
    in_buck, in_cmake = sides
    for node in sorted(in_cmake.keys() - in_buck.keys()):
        item = in_cmake[node]
        findings.report(
            "parity-dependency-missing-in-buck",
            item.place,
            node,
            pair.name,
            variant,
            name=item.name,
            lacking=_lack(pair.buck),
            file=_file_for("", pair, buck),
        )
    for node in sorted(in_buck.keys() - in_cmake.keys()):
        item = in_buck[node]
        rule = "parity-dependency-missing-in-cmake"
        findings.report(rule, item.place, node, pair.name, variant, name=item.name)


def _twin_of(side: Side, name: str) -> str:
    """The library that a label means: its own, or the one it is a twin of."""
    return name if name in side.libraries else name.removesuffix(TWIN) if name.startswith("//") else name


def _dependencies_within(findings: Findings, variant: str, pair: MappedPair, buck: Side, cmake: Side) -> None:
    """Dependencies between the Buck libraries of one pair, by their files: CMake links them where Buck has
    one library for several of its targets."""
    owner = {item.name: library.name for library in _of(buck, pair.buck) for item in library.compiled}
    part = {
        library.name: {owner[item.name] for item in library.compiled if item.name in owner}
        for library in _of(cmake, pair.cmake)
    }
    linked: dict[tuple[str, str], NamedItem] = {}
    for name, owners in part.items():
        for item in cmake.libraries[name].dependencies:
            for dependent in owners:
                for dependency in part.get(item.name, ()):
                    if dependent != dependency:
                        linked.setdefault((dependent, dependency), item)
    for (dependent, dependency), item in linked.items():
        if dependency not in {_twin_of(buck, other.name) for other in buck.libraries[dependent].dependencies}:
            findings.report(
                "parity-dependency-missing-in-buck",
                item.place,
                dependency,
                pair.name,
                variant,
                message=f"CMake links {item.name} (of {dependency}) here,"
                f" and {dependent} does not depend on that",
                fix=f"add it to the deps of {dependent}",
            )


def _flags(
    findings: Findings, variant: str, pair: MappedPair, pairs: Sequence[MappedPair], buck: Side, cmake: Side
) -> None:
    buck_libraries, cmake_libraries = _of(buck, pair.buck), _of(cmake, pair.cmake)
    if not buck_libraries or not cmake_libraries:
        return
    scope, paired = findings.mapping.scope, {name for pair in pairs for name in (*pair.buck, *pair.cmake)}
    for rule, kind in (
        ("parity-definition-differs", "definitions"),
        ("parity-option-differs", "options"),
    ):
        here, there = (
            first_places(
                item
                for library in libraries
                for item in (*getattr(library, kind), *_handed_on(scope, side, library, kind, paired))
                if not item.name.startswith("-I")
            )
            for side, libraries in ((buck, buck_libraries), (cmake, cmake_libraries))
        )
        for name in sorted(here.keys() ^ there.keys()):
            place = here.get(name) or there[name]
            note = name.startswith("-W")
            words = _has_and_lacks(name in here)
            findings.report(rule, place, name, pair.name, variant, note=note, **words)
    ours, theirs = (
        [library.whole for library in libraries if library.whole]
        for libraries in (buck_libraries, cmake_libraries)
    )
    if bool(ours) != bool(theirs):
        place, words = (ours or theirs)[0], _has_and_lacks(bool(ours))
        findings.report("parity-whole-archive-differs", place, "link_whole", pair.name, variant, **words)


def _handed_on(
    scope: Scope, side: Side, library: Library, kind: str, paired: set[str]
) -> Iterator[NamedItem]:
    """The `definitions` or `options` that a library gets from libraries of no pair."""
    for other in linked(side, library):
        for item in getattr(other, kind) if other.name not in paired else ():
            # What one project says of another's library is for itself alone.
            near = scope.part(item.place.file) == scope.part(library.folder)
            if item.scope != "PRIVATE" and (near or other.name in side.libraries):
                yield item


def _standards(findings: Findings, variant: str, pair: MappedPair, buck: Side, cmake: Side) -> None:
    """The standard that each source of both is compiled by."""
    by_file = [
        {
            item.name: standard
            for library in libraries
            if (standard := library.standard)
            for item in library.compiled
        }
        for libraries in (_of(buck, pair.buck), _of(cmake, pair.cmake))
    ]
    for path in sorted(by_file[0].keys() & by_file[1].keys()):
        ours, theirs = by_file[0][path], by_file[1][path]
        if ours.name != theirs.name:
            # Where .buckconfig says it for all, the line to look at is CMake's.
            place = theirs.place if ours.place.file == ".buckconfig" else ours.place
            findings.report(
                "parity-standard-differs",
                place,
                ours.name,
                pair.name,
                variant,
                buck=ours.place,
                other=theirs.name,
                cmake=theirs.place,
            )


def _of(side: Side, names: Iterable[str]) -> list[Library]:
    return [library for name in names if (library := side.libraries.get(name))]


def _has_and_lacks(buck_has_it: bool) -> dict[str, Any]:
    return {"has": "Buck", "lacks": "CMake"} if buck_has_it else {"has": "CMake", "lacks": "Buck"}


def _any_of(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _platforms(findings: Findings, variant: Variant, pair: MappedPair, buck: Side) -> None:
    for library in _of(buck, pair.buck):
        if library.platforms and variant.platform and variant.platform not in library.platforms:
            findings.report(
                "parity-platforms-differ",
                library.place,
                variant.platform,
                library.name,
                variant.name,
                platforms=", ".join(library.platforms),
                pair=pair.name,
            )


def _schemas(findings: Findings, bucks: Sequence[Side], cmakes: Sequence[Side]) -> None:
    """The files that code is generated from, and by which program with which flags."""

    def by_input(sides: Sequence[Side]) -> dict[str, GeneratingRule]:
        suffixes = tuple(suffix for suffix in findings.mapping.scope.suffixes if suffix in SCHEMAS)
        inputs: dict[str, GeneratingRule] = {}
        for side in sides:
            for rule in side.generated:
                exported = (item for label in rule.labels for item in side.exported.get(label, ()))
                inputs |= {
                    file.name: rule for file in (*rule.inputs, *exported) if file.name.endswith(suffixes)
                }
        return inputs

    in_buck, in_cmake = by_input(bucks), by_input(cmakes)

    def report(place: TreePlace, what: str, path: str, has: str, how: str) -> None:
        findings.report("parity-schema-differs", place, what, path, has=has, how=how)

    for path in sorted(in_buck.keys() | in_cmake.keys()):
        one, other = in_buck.get(path), in_cmake.get(path)
        if not (one and other):
            sides = _has_and_lacks(one is not None)
            place = (one or other or in_buck[path]).place
            report(place, path, path, sides["has"], f", and {sides['lacks']} does not")
            continue
        here, there = (_flags_of_program(rule) for rule in (one, other))
        for flag in sorted(here ^ there):
            sides = _has_and_lacks(flag in here)
            place = (one if flag in here else other).place
            report(place, flag, path, sides["has"], f" with {flag}, {sides['lacks']} without")
        if one.command[:1] != other.command[:1]:
            report(one.place, path, path, "Buck", f" by {one.command[0]}, and CMake by {other.command[0]}")


def _flags_of_program(rule: GeneratingRule) -> set[str]:
    """The long flags of a command, each with its value where that is a word and no path."""
    flags: set[str] = set()
    for word, after in zip(rule.command, (*rule.command[1:], ""), strict=True):
        if word.startswith("--"):
            value = re.fullmatch(r"[\w+]+", after)
            flags.add(f"{word}={after}" if value else word)
    return flags


def _labels(findings: Findings, tree: Tree, bucks: Sequence[Side]) -> None:
    """Every label of a package in the tree must be declared there."""
    evaluated = {package for side in bucks for package in side.packages}
    failed = {package for side in bucks for package in side.failed}
    declared = {label for side in bucks for label in side.declared}
    names = findings.mapping.buck.names
    named = cache(named_by(tree, findings.mapping.buck))
    build_files = {posixpath.dirname(path) for path in tree.files if posixpath.basename(path) in names}
    tops = {folder.partition("/")[0] for folder in build_files}
    for item in {(item.name, item.place.file): item for side in bucks for item in side.labels}.values():
        package, _, name = item.name.removeprefix("//").partition(":")
        if not item.name.startswith("//") or item.name.startswith("//:") or package in failed:
            continue
        if package in evaluated:
            missing = item.name not in declared
        elif package in build_files:
            missing = not _names_it(named(package), name)
        else:
            missing = tree.whole and not is_left_out(package) and package.partition("/")[0] in tops
        if missing:
            findings.report("parity-label-missing", item.place, item.name, item.place.file)


def _names_it(known: set[str], name: str) -> bool:
    """Whether a package outside the scope, which is not evaluated, contains a name that may be the
    target's."""
    if not twins(name.removesuffix(TWIN)).isdisjoint(known):
        return True
    patterns = [value.replace("{}", "*") for value in known if "{}" in value]
    return any(name.startswith(f"{value}_") for value in known if value) or _any_of(name, patterns)


def _packages(findings: Findings, tree: Tree, bucks: Sequence[Side]) -> None:
    names, entry = findings.mapping.buck.files, findings.mapping.buck.entry
    words: dict[str, Any] = {"names": ", ".join(names), "first": names[0], "entry": entry}
    for package in sorted({package for side in bucks for package in side.packages}):
        if not any(posixpath.join(package, name) in tree.files for name in names):
            path = posixpath.join(package, MACROS)
            findings.report("parity-package-missing", TreePlace(path, 1), path, "tree", **words)


def _unmapped(findings: Findings, variant: str, pairs: Sequence[MappedPair], buck: Side, cmake: Side) -> None:
    mapped = {name for pair in pairs for name in (*pair.buck, *pair.cmake)}
    patterns_alone = [name for alone in findings.mapping.alone for name in (*alone.buck, *alone.cmake)]
    for side, build in ((buck, "Buck"), (cmake, "CMake")):
        for library in side.libraries.values():
            known = library.name in mapped or _any_of(library.name, patterns_alone)
            if not known and _native(findings, library):
                findings.report("parity-unmapped-target", library.place, library.name, build, variant)


def _compiled_twice(findings: Findings, variant: str, side: Side, leave_out: set[str]) -> None:
    first: dict[str, str] = {}
    for library in side.libraries.values():
        if library.name in leave_out:
            continue
        if library.name.startswith("//"):
            for item in duplicates(library):
                findings.report("parity-listed-twice", item.place, item.name, library.name, variant)
        for path, place in first_places(library.compiled).items():
            other = first.setdefault(path, library.name)
            if other != library.name:
                how = f"in {other} and again in {library.name}"
                programs = {library.kind, side.libraries[other].kind} & _PROGRAMS
                rule = "parity-compiled-twice"
                findings.report(rule, place, path, library.name, variant, note=bool(programs), how=how)


def _compiled_again(findings: Findings, variant: str, cmake: Side) -> None:
    """Sources that a library passes on to its users are compiled again there."""
    for library in cmake.libraries.values():
        if library.kind == "interface":
            continue
        for item in reached(cmake, library):
            if is_source(item.name):
                how = f"{item.scope} here, so again in {library.name}"
                findings.report(
                    "parity-compiled-twice", item.place, item.name, library.name, variant, how=how
                )


def _heavy(findings: Findings, variant: str, buck: Side) -> None:
    for rule in findings.mapping.heavy:
        for library in buck.libraries.values():
            if _any_of(library.name, rule.allowed):
                continue
            for item in library.dependencies:
                if _any_of(item.name, rule.dependencies):
                    heavy = "parity-heavy-dependency"
                    findings.report(
                        heavy, item.place, item.name, library.name, variant, note=True, reason=rule.reason
                    )


def _include_flags(findings: Findings, variant: str, buck: Side) -> None:
    """Directories that Buck's own -I flags name: they begin wherever the project that builds has its root."""
    for library in buck.libraries.values():
        for item in library.options:
            if item.name.startswith("-I") and "$(" not in item.name:
                findings.report("parity-include-flag", item.place, item.name, library.name, variant)


def _includes(findings: Findings, variant: str, buck: Side, cmake: Side) -> None:
    """Headers that Buck gives out by a name that none of CMake's include directories gives them."""
    folders = {item.name for library in cmake.libraries.values() for item in library.includes}
    for library in buck.libraries.values():
        wrong = {
            alias: item
            for alias, item in library.included.items()
            if not any(posixpath.join(folder, alias) == item.name for folder in folders)
        }
        headers = sum(is_header(item.name) for item in library.files)
        if len(wrong) == headers > 1:
            # One cause: the namespace, or that there is none.
            alias, item = next(iter(wrong.items()))
            place, what = library.namespace or library.place, "header_namespace"
            findings.report(
                "parity-header-renamed",
                place,
                what,
                library.name,
                variant,
                message=f"{library.name} gives {item.name} out as {alias}, and so all its {headers} headers,"
                " by names that CMake does not give them",
                fix="correct the header_namespace; without one it is the package's path",
            )
            continue
        for alias, item in wrong.items():
            rule = "parity-header-renamed"
            findings.report(rule, item.place, item.name, library.name, variant, alias=alias)


def _globs(findings: Findings, uses: list[Glob]) -> None:
    """A pattern of a shared macro may match in one directory and not in the next: it is empty only if it
    never matches."""
    matching = {(use.place, use.pattern, use.exclude) for use in uses if use.matched}
    for use in uses:
        if (use.place, use.pattern, use.exclude) in matching:
            continue
        rule = "parity-exclude-empty" if use.exclude else "parity-glob-empty"
        findings.report(rule, use.place, use.pattern, use.place.file)


def _alone(findings: Findings, sides: Sequence[Side]) -> None:
    known = {name for side in sides for name in side.libraries}
    if findings.incomplete:
        return
    for position, alone in enumerate(findings.mapping.alone):
        for name in (*alone.buck, *alone.cmake):
            if not any(fnmatchcase(pattern, name) for pattern in known):
                findings.add(findings.stale("alone", position, name, "no build declares it"))


def _lack(labels: tuple[str, ...]) -> str:
    return f"{labels[0]} lacks" if len(labels) == 1 else f"{' and '.join(labels)} lack"


def _file_for(path: str, pair: MappedPair, buck: Side) -> str:
    """The file that declares the library of the pair that should have this one."""
    label = next((label for label in pair.buck if path.startswith(f"{package_of(label)}/")), pair.buck[0])
    return buck.libraries[label].place.file
