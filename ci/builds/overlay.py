"""An ExecuTorch tree with our files in it, made of links, so that the tree itself is never written to.

    <overlay>/executorch/ → every entry of the tree, but for the folders on the way to what is ours

PYTHONPATH names <overlay>: `import executorch` then finds the tree's Python and the adaptors just built, also
where an executorch wheel is installed: its packages would hide folders of the tree that have no __init__.py.
"""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ci.builds.links import links_of, on_the_way
from ci.builds.tree import OWN_NAME

STALE = ("Py*.so", "*.fbs")
"""What earlier builds left beside our files in the tree; an overlay has ours alone."""

OVERLAY = "overlay"
"""Its name below dist/<target>/."""

MARKER = "tree.txt"
"""Names the tree, for the environment to put an overlay on PYTHONPATH for that tree alone."""


@dataclass(frozen=True, slots=True)
class Farm:
    """Folders to make, and what to link where, all relative to the tree."""

    folders: tuple[str, ...]
    links: tuple[str, ...]
    packages: tuple[str, ...]
    """Folders that get an empty __init__.py."""


def farm(tree: Path, folders: Collection[str]) -> Farm:
    """For an overlay in which these folders of the tree get files of ours."""
    real = {".", *folders}.union(*map(on_the_way, folders))

    def stale(place: str) -> bool:
        path = PurePosixPath(place)
        return str(path.parent) in folders and any(fnmatch.fnmatch(path.name, each) for each in STALE)

    packages = [each for each in sorted(real) if each != "." and not (tree / each / "__init__.py").is_file()]
    return Farm(tuple(sorted(real)), links_of(tree, real, stale), tuple(packages))


def make(tree: Path, files: Mapping[str, Path], into: Path) -> Path:
    """`files`: place in the tree → the file to copy there. Returns what PYTHONPATH must name."""
    part = into.with_name(f".{into.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    made = farm(tree, {str(PurePosixPath(place).parent) for place in files})
    for folder in made.folders:
        (part / OWN_NAME / folder).mkdir(parents=True, exist_ok=True)
    for link in made.links:
        (part / OWN_NAME / link).symlink_to(tree / link)
    for package in made.packages:
        (part / OWN_NAME / package / "__init__.py").touch()
    for place, path in files.items():
        shutil.copyfile(path, part / OWN_NAME / place)
    (part / MARKER).write_text(f"{tree}\n", encoding="utf-8")
    shutil.rmtree(into, ignore_errors=True)
    part.replace(into)
    return into


def install(tree: Path, files: Mapping[str, Path]) -> None:
    """Copy into the tree itself, and take away adaptors of earlier builds."""
    for folder in {(tree / place).parent for place in files}:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(STALE[0]):
            path.unlink()
    for place, path in files.items():
        shutil.copyfile(path, tree / place)
