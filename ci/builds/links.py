"""A tree shown in another place by links, so that what is put there never reaches the tree itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath

LEFT_OUT = ".git"


def on_the_way(folder: str) -> set[str]:
    """The folders that hold this one; `.` is the tree."""
    return {str(parent) for parent in PurePosixPath(folder).parents}


def links_of(tree: Path, real: Collection[str], without: Callable[[str], bool]) -> tuple[str, ...]:
    """What to link where the folders in `real` are real ones: all else that they hold."""
    return tuple(
        place
        for folder in sorted(real)
        if (tree / folder).is_dir()
        for place in sorted(str(path.relative_to(tree)) for path in (tree / folder).iterdir())
        if place not in real and PurePosixPath(place).name != LEFT_OUT and not without(place)
    )
