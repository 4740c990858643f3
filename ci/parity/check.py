"""Check a whole tree against its mapping: find all differences, without writing to disk.

Pairs are compared in `pairs`; here is what needs all variants, or the tree itself."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from ci.parity import buck, imports, pairs
from ci.parity.cmake_targets import evaluate
from ci.parity.cmake_trace import ConfigureInput
from ci.parity.mapping import MACROS, Accepted, Difference, Findings, Mapping, any_of
from ci.parity.pairs import has_and_lacks
from ci.parity.tree import (
    SCHEMAS,
    Side,
    Target,
    Tree,
    TreePlace,
    first_places,
    is_header,
    is_native,
    is_python,
    package_of,
)

_TREE = "tree"
"""The place of a difference that is in no pair, library or file."""


@dataclass(frozen=True, slots=True)
class Checked:
    differences: tuple[Difference, ...]
    notes: tuple[Difference, ...]
    """What is worth knowing, and no error."""
    buck: MappingOf[str, Sequence[Side]]
    """Buck's sides by variant, one for each of the mapping's builders."""
    cmake: MappingOf[str, Side]
    explained: tuple[Difference, ...] = ()
    """All differences that an entry of the mapping explains."""


def check(
    tree: Tree,
    mapping: Mapping,
    file: Path,
    cmake: MappingOf[str, Side] | None = None,
    accepted: Accepted | None = None,
) -> Checked:
    """Check everything. `file` is the mapping's; `cmake` has CMake's sides, if its files were evaluated
    already. Without `accepted`, whatever an entry of the mapping explains is meant."""
    mapping = mapping.fitted(tree)
    with ThreadPoolExecutor(1) as thread:
        # CMake's processes run while Buck's files are evaluated here.
        future = None if cmake else thread.submit(cmake_sides, tree, mapping)
        bucks = buck.evaluate(tree, mapping)
        cmakes = future.result() if future else cmake or {}
    findings = Findings(mapping, file, accepted)
    for variant in mapping.variants:
        pairs.compare(findings, variant, bucks[variant.name], cmakes[variant.name])
    _Everything(
        findings, tree, [side for sides in bucks.values() for side in sides], [*cmakes.values()]
    ).check()
    differences = findings.settled(tree)
    errors = tuple(difference for difference in differences if not difference.note)
    notes = tuple(difference for difference in differences if difference.note)
    return Checked(errors, notes, bucks, cmakes, tuple(findings.explained))


def cmake_sides(tree: Tree, mapping: Mapping) -> dict[str, Side]:
    mapping = mapping.fitted(tree)
    path, names = mapping.cmake.lists, [variant.name for variant in mapping.variants]
    dependencies = {name for entry in mapping.dependencies for name in entry.cmake}
    projects = [
        ConfigureInput(
            entries=(mapping.cmake.entry, *mapping.cmake.also, *variant.also),
            includes=mapping.cmake.includes,
            variables={**mapping.cmake.variables, **variant.cmake},
            ignored=mapping.cmake.ignored_commands,
            outside=mapping.cmake.outside,
            shared=frozenset(mapping.cmake.shared),
            targets=frozenset({*dependencies, *mapping.cmake.targets, *variant.targets}),
            lists=buck.lists(tree, path) if path in tree.files else {},
        )
        for variant in mapping.variants
    ]
    return dict(zip(names, evaluate(tree, projects), strict=True))


class _Everything:
    """All sides of Buck and CMake, and the tree."""

    def __init__(self, findings: Findings, tree: Tree, bucks: Sequence[Side], cmakes: Sequence[Side]) -> None:
        self.findings, self.tree, self.bucks, self.cmakes = findings, tree, bucks, cmakes
        self.report, self.mapping, self.scope = findings.report, findings.mapping, findings.mapping.scope
        self.sides = [*bucks, *cmakes]
        self.failed = {package for side in self.sides for package in side.failed}

    def check(self) -> None:
        self._globs()
        self._alone()
        self._sources_of_buck_alone()
        self._imports()
        self._labels()
        self._packages()
        if not any(side.stopped for side in self.sides):
            self._schemas()
            self._generated_headers()
            self._files()

    # What no build names

    def _files(self) -> None:
        targets = [target for side in self.sides for target in (*side.libraries.values(), *side.rules)]
        names = {item.name for target in targets for item in target.files}
        names |= {item.name for side in self.sides for item in side.resources}
        failed = tuple(f"{package}/" for package in self.failed)
        unknown = []
        for root in self.scope.roots:
            for path in sorted(self.tree.under(root)):
                is_source = path.endswith(self.scope.suffixes) and not path.startswith(failed)
                if is_source and path not in names:
                    unknown.append(path)
        self._unknown_modules([path for path in unknown if is_python(path)], names)
        other_builds = self._other_builds({folder for side in self.sides for folder in side.packages})
        libraries = [library for side in self.cmakes for library in side.libraries.values()]
        included = first_places(
            item for library in libraries for item in library.includes if self.scope.holds(item.name)
        )
        for path in unknown:
            place = next((place for folder, place in included.items() if path.startswith(f"{folder}/")), None)
            if is_header(path) and place is not None:
                self.report("parity-missing-in-buck", place, path, _TREE, case="included")
            elif not is_python(path) and not any(
                _has(text, folder, path) for folder, text in other_builds.items()
            ):
                self.report("parity-unknown-file", TreePlace(path, 1), path, _TREE)
        self._listings(names)

    def _other_builds(self, folders: set[str]) -> dict[str, str]:
        """The texts of build files that nothing evaluated, such as a Makefile of an example, by directory."""
        paths = [path for root in self.scope.roots for path in self.tree.under(root)]
        return {
            folder: re.sub("#.*", "", self.tree.read(path))
            for path in paths
            if posixpath.basename(path) in self.scope.other_builds
            and (folder := posixpath.dirname(path)) not in folders
        }

    def _listings(self, names: set[str]) -> None:
        for position, entry in enumerate(self.mapping.listed):
            files = [path for path in self.tree.under(entry.folder) if path.endswith(entry.suffixes)]
            if not files:
                self.findings.report_stale("listed", position, entry.folder, "it holds no such file")
            for path in files:
                if path not in names and posixpath.basename(path) not in entry.without_code:
                    place, words = TreePlace(path, 1), {"build": entry.build}
                    self.report("parity-unknown-file", place, path, _TREE, words, case="listed")

    def _unknown_modules(self, unknown: list[str], names: set[str]) -> None:
        """Report modules that nothing lists. Only Buck lists Python files.

        A module that it does not list, in a folder with listed ones, was forgotten. A package with no listed
        module is one finding."""
        rule = "parity-unknown-file"
        modules = [path for path in names if is_python(path)]
        ancestors = {"", *(folder for path in modules for folder in _folders(path))}
        listed_folders = {posixpath.dirname(path) for path in modules}
        packages: dict[str, list[str]] = {}
        for path in unknown:
            if (
                posixpath.basename(path) == "__init__.py"
                and not re.sub("#.*", "", self.tree.read(path)).strip()
            ):
                continue  # Buck creates these itself.
            if posixpath.dirname(path) in listed_folders:
                self.report(rule, TreePlace(path, 1), path, _TREE, case="module")
                continue
            folders = [folder for folder in _folders(path) if folder not in ancestors]
            packages.setdefault(folders[-1] if folders else posixpath.dirname(path), []).append(path)
        for folder, paths in packages.items():
            deep = "**/" if any(posixpath.dirname(path) != folder for path in paths) else ""
            listing = f"any of the {len(paths)} Python files of {folder}"
            words = {"files": paths[0] if len(paths) == 1 else listing}
            place = TreePlace(paths[0], 1)
            self.report(rule, place, f"{folder}/{deep}*.py", _TREE, words, case="package")

    # Generated code

    def _schemas(self) -> None:
        """Find the files that code is generated from, and by which program with which flags."""
        in_buck, in_cmake = self._rules_by_schema(self.bucks), self._rules_by_schema(self.cmakes)

        def report(rule: Target, subject: str, path: str, has: str, contrast: str) -> None:
            self.report("parity-schema-differs", rule.place, subject, path, {"has": has, "how": contrast})

        for path in sorted(in_buck.keys() | in_cmake.keys()):
            one, other = in_buck.get(path), in_cmake.get(path)
            if not (one and other):
                sides = has_and_lacks(one is not None)
                report(
                    one or other or in_buck[path],
                    path,
                    path,
                    sides["has"],
                    f", and {sides['lacks']} does not",
                )
                continue
            buck_flags, cmake_flags = _flags(one), _flags(other)
            for flag in sorted(buck_flags ^ cmake_flags):
                sides = has_and_lacks(flag in buck_flags)
                contrast = f" with {flag}, {sides['lacks']} without"
                report(one if flag in buck_flags else other, flag, path, sides["has"], contrast)
            if one.command[:1] != other.command[:1]:
                report(one, path, path, "Buck", f" by {one.command[0]}, and CMake by {other.command[0]}")

    def _rules_by_schema(self, sides: Sequence[Side]) -> dict[str, Target]:
        suffixes = tuple(suffix for suffix in self.scope.suffixes if suffix in SCHEMAS)
        rules: dict[str, Target] = {}
        for side in sides:
            files = {rule.name: rule.files for rule in side.rules}
            for rule in side.rules if suffixes else ():
                inputs = (item for label in rule.dependencies for item in files.get(label.name, ()))
                for item in (*rule.files, *inputs) if rule.command else ():
                    if item.name.endswith(suffixes):
                        rules[item.name] = rule
        return rules

    def _generated_headers(self) -> None:
        """Report headers that C++ includes and that a build should generate: no tree has them."""
        rules = {"Buck": self._rules_by_schema(self.bucks), "CMake": self._rules_by_schema(self.cmakes)}
        libraries = [library for side in self.bucks for library in side.libraries.values()]
        in_buck = {name for library in libraries for name in library.generated}
        outputs = [name for side in self.cmakes for rule in side.rules for name in rule.name.split(";")]
        for header, include in self._includes_of_nothing().items():
            full = posixpath.join(self.mapping.buck.namespace, header)
            made = {"Buck": full in in_buck, "CMake": any(name.endswith(f"/{full}") for name in outputs)}
            for build, is_made in made.items():
                rule = None if is_made else next(iter(rules[build].values()), None)
                if not is_made:
                    words = {"build": build, "include": include}
                    place = rule.place if rule else include
                    self.report("parity-header-missing", place, header, build, words)

    def _includes_of_nothing(self) -> dict[str, TreePlace]:
        """Map headers of the checked folders that are included and not in the tree to their first include."""
        pattern = rf'^\s*#\s*include\s*[<"]{self.mapping.buck.namespace}/([^>"]+)[>"]'
        places: dict[str, TreePlace] = {}
        for path in (path for root in self.scope.roots for path in self.tree.under(root)):
            text = self.tree.read(path) if is_native(path) else ""
            for match in re.finditer(pattern, text, re.MULTILINE):
                header = match[1]
                if self.scope.holds(header) and header not in self.tree.files and header not in places:
                    places[header] = TreePlace(path, text.count("\n", 0, match.start(1)) + 1)
        return places

    # What only Buck has

    def _sources_of_buck_alone(self) -> None:
        """Report sources of libraries that are in no pair because CMake compiles the same elsewhere."""
        in_cmake = {
            item.name for side in self.cmakes for library in side.libraries.values() for item in library.files
        }
        paired = {name for pair in self.mapping.pairs for name in pair.buck}
        alone = [name for entry in self.mapping.alone for name in entry.buck]
        for side in () if any(side.stopped for side in self.cmakes) else self.bucks:
            for library in side.libraries.values():
                if library.name in paired or not any_of(library.name, alone):
                    continue
                for item in library.compiled:
                    if self.scope.holds(item.name) and item.name not in in_cmake:
                        rule, words = "parity-missing-in-cmake", {"library": library.name}
                        self.report(rule, item.place, item.name, library.name, words, case="alone")

    def _imports(self) -> None:
        """Report Python libraries that import what their dependencies do not bring."""
        for gap in () if self.failed else imports.gaps(self.tree, self.mapping):
            words = {"import": TreePlace(gap.file, gap.line)}
            self.report("parity-import-missing", gap.place, gap.owner, gap.library.name, words)

    # Labels, packages and patterns

    def _labels(self) -> None:
        """Every label of a package that was evaluated must be declared there. One of another package is a
        dependency that no entry of the mapping names, if it is misspelled."""
        packages = {package for side in self.bucks for package in side.packages} - self.failed
        declared = {label for side in self.bucks for label in side.declared}
        labels = {(item.name, item.place.file): item for side in self.bucks for item in side.labels}
        for item in labels.values():
            if package_of(item.name) in packages and item.name not in declared:
                self.report("parity-label-missing", item.place, item.name, item.place.file)

    def _packages(self) -> None:
        names, entry = self.mapping.buck.files, self.mapping.buck.entry
        words = {"names": ", ".join(names), "first": names[0], "entry": entry}
        for package in sorted({package for side in self.bucks for package in side.packages}):
            if not any(posixpath.join(package, name) in self.tree.files for name in names):
                path = posixpath.join(package, MACROS)
                self.report("parity-package-missing", TreePlace(path, 1), path, _TREE, words)

    def _globs(self) -> None:
        """A pattern of a shared macro may match in one directory and not in the next: it is empty only if it
        never matches."""
        uses = [use for side in self.sides for use in side.globs]
        matches = {(use.place, use.pattern, use.exclude) for use in uses if use.matched}
        for use in uses:
            if (use.place, use.pattern, use.exclude) not in matches:
                rule = "parity-exclude-empty" if use.exclude else "parity-glob-empty"
                self.report(rule, use.place, use.pattern, use.place.file)

    def _alone(self) -> None:
        libraries = {name for side in self.sides for name in side.libraries}
        for position, alone in enumerate(self.mapping.alone if not self.findings.incomplete else ()):
            for name in (*alone.buck, *alone.cmake):
                if not any(fnmatchcase(library, name) for library in libraries):
                    self.findings.report_stale("alone", position, name, "no build declares it")


def _has(text: str, folder: str, path: str) -> bool:
    """Whether a build file of this directory names the file, or all of its kind."""
    name = posixpath.basename(path)
    kind = re.escape(posixpath.splitext(name)[1])
    words = rf"(?<![\w.-])(?:{re.escape(name)}|\*{kind})(?![\w.-])"
    return path.startswith(f"{folder}/") and re.search(words, text) is not None


def _folders(path: str) -> list[str]:
    """The directories that contain a file, the innermost first, without the top."""
    return [str(folder) for folder in PurePosixPath(path).parents][:-1]


def _flags(rule: Target) -> set[str]:
    """The long flags of a command, each with its value where that is a word and no path."""
    flags: set[str] = set()
    for word, after in zip(rule.command, (*rule.command[1:], ""), strict=True):
        if word.startswith("--"):
            value = re.fullmatch(r"[\w+]+", after)
            flags.add(f"{word}={after}" if value else word)
    return flags
