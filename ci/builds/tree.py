"""What is built: recipes, which are manifests/recipes/<target>.toml over the base that it names; and
ExecuTorch's tree: its version, commit and submodules.

Nothing is ever written into the tree: it is shown in another folder by links. CMake gets such a folder,
with copies of the folders that its own build writes into: flatcc's project puts its library into its source
folder, which fails in a read-only tree, and the next target would link it.

Python gets one too: an overlay with our adaptors and schemas, and PYTHONPATH names the folder above its
executorch/. It must show the whole tree, because otherwise an installed wheel would hide the folders
without an __init__.py.
"""

from __future__ import annotations

import configparser
import fnmatch
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from provisioning.base.commands import quote_command
from provisioning.base.documents import Model, Name, load
from provisioning.base.errors import EnvironmentLacking, ManifestError
from provisioning.base.settings import MANIFESTS
from provisioning.components import EXECUTORCH_SOURCE
from provisioning.dist import BuiltFrom, describe
from provisioning.source_tree import REPOSITORY, TreeState, git_output, state_of

# Recipes


RECIPES = MANIFESTS / "recipes"
PLACEHOLDERS = ("tree", "build", "sdk", "ndk", "python", "cc", "cxx")

Kind = Literal["library", "runner", "adaptor"]
Toolchain = Literal["host", "ndk", "cross"]
_PART = r"[\w{}*+-]+(?:\.[\w{}*+-]+)*"
Inside = Annotated[str, StringConstraints(pattern=rf"^(?:\.|{_PART}(?:/{_PART})*)$")]
"""A path that stays below the folder it is relative to."""

Options = dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], str]


class RecipeProject(Model):
    """One CMake project of the tree."""

    name: Name
    source: Inside
    build: Inside
    install: bool = False
    """Whether its install rules run: later projects find it in CMAKE_INSTALL_PREFIX."""
    options: Options = Field(default_factory=dict)


class Copy(Model):
    """A file that the tree's Python package also needs in another place."""

    file: Inside
    to: Inside
    """A folder."""


class Recipe(Model):
    schema_: Literal[1] = Field(alias="schema")
    summary: str
    base: Name | None = None
    toolchain: Toolchain | None = None
    compiler: str = ""
    """The prefix of the cross compilers' names."""
    options: Options = Field(default_factory=dict)
    """Options of every project."""
    link_flags: tuple[str, ...] = ()
    projects: tuple[RecipeProject, ...] = ()
    ships: tuple[Inside, ...] = ()
    """Patterns of files in dist/ that every build has; what else CMake built is shipped as well."""
    python: dict[str, Inside] = Field(default_factory=dict)
    """Libraries that Python loads: a pattern of CMake's names → their folder in the Python package."""
    copies: tuple[Copy, ...] = ()
    submodules: tuple[Inside, ...] = ()
    """Submodules that these projects read, some of them inside others."""
    written: tuple[Inside, ...] = ()
    """Folders of the tree that its own build writes into; each build folder gets copies."""

    @model_validator(mode="after")
    def _placeholders(self) -> Recipe:
        values = [*self.options.values(), *(v for p in self.projects for v in p.options.values())]
        for value in values:
            for name in re.findall(r"\{(\w*)\}", value):
                if name not in PLACEHOLDERS:
                    raise ValueError(f"placeholders among {', '.join(PLACEHOLDERS)}, not {name!r}")
        return self


@cache
def load_recipe(target: str) -> Recipe:
    """The recipe of a target, with what it takes from its base."""
    path = RECIPES / f"{target}.toml"
    recipe = load(path, Recipe)
    if recipe.base is not None:
        base = load(RECIPES / f"{recipe.base}.toml", Recipe)
        recipe = recipe.model_copy(
            update={
                "options": {**base.options, **recipe.options},
                "link_flags": (*base.link_flags, *recipe.link_flags),
                "projects": (*base.projects, *recipe.projects),
                "ships": (*base.ships, *recipe.ships),
                "python": {**base.python, **recipe.python},
                "submodules": (*base.submodules, *recipe.submodules),
                "copies": (*base.copies, *recipe.copies),
                "written": (*base.written, *recipe.written),
            }
        )
    for key in ("toolchain", "projects", "ships"):
        if not getattr(recipe, key):
            raise ManifestError(path, key, expected="a value here or in its base", found="none")
    return recipe


def fill_placeholders(text: str, values: dict[str, str]) -> str:
    """Replace placeholders; other braces and `$ORIGIN` stay."""
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name.group(1), name.group()), text)


# Trees


MARKS = ("CMakeLists.txt", "backends/qualcomm/CMakeLists.txt", "examples/qualcomm/CMakeLists.txt")
OWN_NAME = "executorch"
"""The directory must have this name: headers are included as <executorch/…> from the folder above."""


@dataclass(frozen=True, slots=True)
class Submodule:
    path: str
    url: str
    commit: str


@dataclass(frozen=True, slots=True)
class SourceTree:
    root: Path
    version: str
    commit: str
    """The tree's commit; empty if it is not a git repository."""
    time: int
    """The commit's time, in seconds since 1970: the date of what is built."""
    repository: Path | None = None
    """The git repository with the commit: for a tree of the store, the checkout it was copied from."""
    state: TreeState = field(default_factory=TreeState)


def open_tree(root: Path, paths: Collection[str] = ()) -> SourceTree:
    """Open a tree. `paths` are the submodules that must be there, if this version of the tree has them."""
    gaps = [mark for mark in MARKS if not (root / mark).is_file()]
    if gaps:
        raise EnvironmentLacking(
            f"{root}: expected an ExecuTorch tree with {gaps[0]}, found none",
            fix="set EXECUTORCH_ROOT to a checkout with its submodules, or unset it to use the store's",
        )
    empty = [path for path in _submodule_urls(root) if path in paths and not any((root / path).glob("*"))]
    if empty:
        outermost = []
        for path in _own_submodules(root):
            if any(f"{name}/".startswith(f"{path}/") for name in empty):
                outermost.append(path)
        update = ("submodule", "update", "--init", "--recursive", "--")
        more = f", and {len(empty) - 1} more" if empty[1:] else ""
        raise EnvironmentLacking(
            f"{root}: the submodule {empty[0]} is empty{more}",
            fix=quote_command("git", "-C", root, *update, *outermost),
        )
    if root.resolve().name != OWN_NAME:
        raise EnvironmentLacking(
            f"{root}: its headers are included as <{OWN_NAME}/…> from the folder above, so that it must be "
            f"named {OWN_NAME}, found {root.resolve().name}",
            fix=f"{quote_command('git', '-C', root, 'worktree', 'add', '--detach', f'{root}.d/{OWN_NAME}')}, "
            "or rename the directory",
        )
    version = root / "version.txt"
    state = state_of(root)
    repository, commit = root, state.commit
    if not commit:
        repository, commit = _find_checkout(root)
    return SourceTree(
        root=root,
        version=version.read_text(encoding="utf-8").strip() if version.is_file() else "",
        commit=commit,
        time=int(git_output(repository, "show", "-s", "--format=%ct", commit or "HEAD") or 0),
        repository=repository,
        state=state,
    )


def submodules(tree: SourceTree) -> list[Submodule]:
    """The tree's submodules and theirs; their commits are known where there is a repository."""
    urls = _submodule_urls(tree.root)
    repository = tree.repository or tree.root
    commits = _linked_commits(repository, tree.commit) if urls else {}
    for outer in [path for path in urls if (tree.root / path / ".gitmodules").is_file()]:
        nested = _linked_commits(repository / outer, "HEAD")
        commits |= {f"{outer}/{path}": commit for path, commit in nested.items()}
    return [Submodule(path, url, commits.get(path, "")) for path, url in urls.items()]


def _linked_commits(repository: Path, commit: str) -> dict[str, str]:
    commits = {}
    for line in git_output(repository, "ls-tree", "-r", commit).splitlines():
        description, _, path = line.partition("\t")
        mode, _, target = description.split()
        if mode == "160000":
            commits[path] = target
    return commits


def file_names(root: Path) -> dict[str, list[str]]:
    """The names of the tree's files, by folder."""
    names = {}
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != REPOSITORY)
        names[folder] = sorted(files)
    return names


def _find_checkout(root: Path) -> tuple[Path, str]:
    """The checkout and the commit of a tree of the store, which keeps the checkout as long as the tree."""
    from provisioning.store import Store
    from provisioning.store.inventory import Inventory

    folder = root.parent  # a tree of the store holds the source in a folder of its own
    inventory = Inventory.read(folder.with_name(f"{folder.name}.json"))
    if inventory is None or inventory.component != EXECUTORCH_SOURCE:
        return root, ""
    commit = inventory.origins[0].sha256
    return Store(folder.parent.parent).downloads / f"git-{commit}", commit


def _submodule_urls(root: Path) -> dict[str, str]:
    """Addresses of submodules, and of theirs, by path."""
    urls = _own_submodules(root)
    for path in list(urls):
        urls |= {f"{path}/{inner}": url for inner, url in _submodule_urls(root / path).items()}
    return urls


def _own_submodules(root: Path) -> dict[str, str]:
    listing = configparser.ConfigParser(strict=False, interpolation=None)
    listing.read(root / ".gitmodules", encoding="utf-8")
    return {entry["path"]: entry["url"] for entry in listing.values() if "path" in entry and "url" in entry}


ADAPTORS = "Py*.so"
STALE = (ADAPTORS, "*.fbs")
"""Files that an earlier build may have left in the tree. An overlay takes only our own."""
VERSION = "version.py"


def link_with_copies(tree: Path, copies: Collection[str], into: Path, folders: Collection[str] = ()) -> None:
    """Update `into`: links to the tree, and copies of some folders. Unchanged files keep their time.

    `folders` are made and not linked, with their parents: `..` in a path through them stays in `into`."""
    own_folders = _add_parents([*copies, *folders]) - set(copies)
    _link(tree, into, own_folders, lambda place: place in copies)
    ignore = shutil.ignore_patterns(REPOSITORY)
    for folder in copies:
        shutil.copytree(
            tree / folder,
            into / folder,
            ignore=ignore,
            copy_function=_copy,
            ignore_dangling_symlinks=True,
            dirs_exist_ok=True,
        )
        for path in (into / folder, *(into / folder).rglob("*")):
            # A tree may be read-only, and the build writes here.
            if path.is_dir():
                path.chmod(0o755)


def make_overlay(tree: SourceTree, files: Mapping[str, Path], into: Path, profile: str) -> None:
    """Make an overlay. `files` maps a place in the tree to the file to copy there, which may replace one of
    the tree."""
    part = into.with_name(f".{into.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    parents = {str(PurePosixPath(place).parent) for place in files}
    folders = _add_parents(parents)
    ours = {*files, VERSION}
    _link(tree.root, part / OWN_NAME, folders, lambda place: place in ours or _is_stale(place, parents))
    for folder in folders - {"."}:
        if not (tree.root / folder / "__init__.py").is_file():
            (part / OWN_NAME / folder / "__init__.py").touch()
    for place, path in files.items():
        shutil.copy(path, part / OWN_NAME / place)
    # As ExecuTorch's setup.py does: else Python would find the version of an installed wheel.
    local = ".".join(filter(None, [tree.commit[:7], "changed" if tree.state.changed else ""]))
    version = "+".join(filter(None, [tree.version, local]))
    text = f"__version__ = {version!r}\ngit_version = {tree.commit!r}\n"
    (part / OWN_NAME / VERSION).write_text(text, encoding="utf-8")
    metadata = part / f"{OWN_NAME}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {OWN_NAME}\nVersion: {version}\n", encoding="utf-8")
    describe(part, BuiltFrom(tree.root, profile, tree.state))
    shutil.rmtree(into, ignore_errors=True)
    part.replace(into)


def _link(tree: Path, into: Path, folders: Iterable[str], skip: Callable[[str], bool]) -> None:
    """Create these folders, and link everything else that they contain in the tree."""
    for folder in sorted(folders):
        (into / folder).mkdir(parents=True, exist_ok=True)
        entries = (tree / folder).iterdir() if (tree / folder).is_dir() else ()
        places = {str(path.relative_to(tree)) for path in entries if path.name != REPOSITORY}
        links = {place for place in places if place not in folders and not skip(place)}
        for path in (into / folder).iterdir():
            if path.is_symlink() and str(path.relative_to(into)) not in links:
                path.unlink()
        for place in links:
            link = into / place
            if not link.is_symlink() or link.readlink() != tree / place:
                _remove(link)
                link.symlink_to(tree / place)


def _add_parents(folders: Iterable[str]) -> set[str]:
    """These folders and all their parents; `.` is the tree."""
    return {".", *folders}.union(*(map(str, PurePosixPath(folder).parents) for folder in folders))


def _is_stale(place: str, parents: Collection[str]) -> bool:
    path = PurePosixPath(place)
    return str(path.parent) in parents and any(fnmatch.fnmatch(path.name, pattern) for pattern in STALE)


def _copy(path: str, to: str) -> None:
    """Copy a file with its time, in place of a link or of what an earlier build left. The copy is writable:
    files of the store are read-only, but the build replaces some of them."""
    Path(to).unlink(missing_ok=True)
    shutil.copy2(path, to)
    Path(to).chmod(0o644 | (Path(path).stat().st_mode & 0o111))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
