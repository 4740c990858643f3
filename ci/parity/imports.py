"""Find Python libraries of Buck that import what none of their dependencies brings.

Upstream's libraries lean on one another in circles, so many such gaps are meant; a new one is a dependency
that was lost or forgotten."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ci.parity.buck import Evaluation, packages
from ci.parity.mapping import Mapping
from ci.parity.tree import Side, Target, Tree, TreePlace, first_places, is_python, package_of


@dataclass(frozen=True, slots=True)
class Gap:
    """A library that imports a file of another one without depending on it."""

    library: Target
    owner: str
    """The label of the other library; a path, if the file is in none."""
    file: str
    line: int

    @property
    def place(self) -> TreePlace:
        """Where the library names its dependencies, else where it is declared."""
        return next((item.place for item in self.library.dependencies), self.library.place)


def gaps(tree: Tree, mapping: Mapping) -> list[Gap]:
    """One gap for each library and each owner, of the builder with the most libraries."""
    libraries = _Libraries(tree, mapping)
    rows: dict[tuple[str, str], Gap] = {}
    for package in packages(tree, mapping.buck, mapping.scope.roots):
        for library in libraries.declared(package).values():
            for gap in libraries.gaps_of(library) if library.kind.startswith("python_") else ():
                rows.setdefault((library.name, gap.owner), gap)
    libraries.evaluation.forget()
    return list(rows.values())


class _Libraries:
    """Buck's libraries, also outside of the checked folders: each package is evaluated when it is needed."""

    def __init__(self, tree: Tree, mapping: Mapping) -> None:
        self.tree, self.mapping = tree, mapping
        self.evaluation = Evaluation(tree, mapping)
        self.namespace = f"{mapping.buck.namespace}."
        self._sides: dict[str, Side] = {}

    def declared(self, package: str) -> dict[str, Target]:
        if package not in self._sides:
            builder = max(self.mapping.buck.builders, key=lambda row: row.get("is_fbcode", False))
            has_files = self._is_package(package)
            run = self.evaluation.run
            self._sides[package] = run(package, self.mapping.variants[0], builder) if has_files else Side()
        return self._sides[package].libraries

    def gaps_of(self, library: Target) -> Iterator[Gap]:
        files, is_whole = self._reached(library)
        for path in dict.fromkeys(item.name for item in library.files if is_python(item.name)):
            for names, line in _imports(path, self.tree.read(path), self.mapping.buck.namespace):
                owner = self._owner(names, files)
                near = owner is not None and self.mapping.scope.holds(package_of(owner))
                if owner is not None and (near or is_whole):
                    yield Gap(library, owner, path, line)

    def _owner(self, names: tuple[str, ...], files: set[str]) -> str | None:
        """The library that a module lies in if it is not reached; its path if it is in no library."""
        path = next((path for name in names if (path := self._file(name)) is not None), None)
        if path is None or path in files:
            return None
        owners = self._owners(path)
        if owners or not self.mapping.scope.holds(path) or path.endswith("/__init__.py"):
            return next(iter(owners), None)
        return path

    def _file(self, module: str) -> str | None:
        if not module.startswith(self.namespace):
            return None
        path = module.removeprefix(self.namespace).replace(".", "/")
        names = (f"{path}.py", f"{path}/__init__.py")
        return next((name for name in names if name in self.tree.files), None)

    def _owners(self, path: str) -> list[str]:
        """The Python libraries of the nearest package that have a file."""
        folder = posixpath.dirname(path)
        while folder and not self._is_package(folder):
            folder = posixpath.dirname(folder)
        owners: list[str] = []
        for library in self.declared(folder).values():
            if library.kind.startswith("python_") and path in first_places(library.files):
                owners.append(library.name)
        return owners

    def _is_package(self, folder: str) -> bool:
        names = self.mapping.buck.names
        return any(posixpath.join(folder, name) in self.tree.files for name in names)

    def _reached(self, library: Target) -> tuple[set[str], bool]:
        """The files that a library and its dependencies bring, and whether all of these could be
        evaluated."""
        files: set[str] = set()
        labels = {library.name}
        pending = [library]
        while pending:
            target = pending.pop()
            files |= {item.name for item in target.files}
            for item in target.dependencies:
                if item.name not in labels:
                    labels.add(item.name)
                    pending += self._targets(item.name)
        return files, not any(
            self._sides[package].failed for package in map(package_of, labels) if package in self._sides
        )

    def _targets(self, label: str) -> Iterable[Target]:
        target = self.declared(package_of(label)).get(label) if label.startswith("//") else None
        return () if target is None else (target,)


@lru_cache(maxsize=2048)
def _imports(path: str, text: str, namespace: str) -> tuple[tuple[tuple[str, ...], int], ...]:
    """What a module imports as it is loaded: the names that each import may mean, nearest first, and its
    line. What a function imports may never be needed."""
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return ()
    imports: list[tuple[tuple[str, ...], int]] = []
    for node in statements:
        if isinstance(node, ast.Import):
            imports += [((alias.name,), node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, path, namespace)
            imports += [((f"{module}.{alias.name}", module), node.lineno) for alias in node.names]
    return tuple(imports)


def _absolute(node: ast.ImportFrom, path: str, namespace: str) -> str:
    """The name of the module that an import is from, which may be relative."""
    if not node.level:
        return node.module or ""
    folder = path
    for _ in range(node.level):
        folder = posixpath.dirname(folder)
    return ".".join([namespace, *filter(None, folder.split("/")), *filter(None, [node.module])])
