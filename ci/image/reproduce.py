"""Is an image the same when it is built again, elsewhere and later? What differs is named, file by file."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ci.image.builders import Buildah, Built, Order, find_buildah
from ci.image.context import link_tree
from ci.image.engine import Engine


@dataclass(frozen=True, slots=True)
class Comparison:
    first: Built
    second: Built
    differing: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.first == self.second


def build_twice(order: Order, engine: Engine, scratch: Path) -> Comparison:
    """Build in two places, from two copies of the context, with nothing shared between them but the base."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    base = scratch / "base.tar"
    engine.save(order.base_id, base)
    built: list[Built] = []
    builders: list[Buildah] = []
    try:
        for place in ("here", "elsewhere"):
            context = scratch / place / "context"
            context.parent.mkdir(parents=True)
            link_tree(order.context, "", context)
            builder = find_buildah(root=scratch / place / "storage")
            builders.append(builder)
            builder.build_apart(replace(order, context=context, log=scratch / f"{place}.log"), base)
            built.append(builder.built(order.tag))
        differing: tuple[str, ...] = ()
        if built[0] != built[1]:
            differing = tuple(differences(*(builder.mounted(order.tag) for builder in builders)))
        return Comparison(built[0], built[1], differing)
    finally:
        base.unlink()
        for builder in builders:
            builder.discard()
        for place in ("here", "elsewhere"):
            shutil.rmtree(scratch / place, ignore_errors=True)


def differences(first: Path, second: Path) -> Iterator[str]:
    """What two trees do not have in common: each path, and whether mode, owner, time or content differ."""
    names = sorted({*_walk(first), *_walk(second)})
    for name in names:
        one, other = first / name, second / name
        present = [os.path.lexists(path) for path in (one, other)]
        if not all(present):
            yield f"/{name}: only in the {'first' if present[0] else 'second'}"
            continue
        a, b = one.lstat(), other.lstat()
        what = [
            word
            for word, field in (
                ("mode", "st_mode"),
                ("owner", "st_uid"),
                ("group", "st_gid"),
                ("time", "st_mtime"),
            )
            if getattr(a, field) != getattr(b, field)
        ]
        if stat.S_IFMT(a.st_mode) == stat.S_IFMT(b.st_mode):
            linked = stat.S_ISLNK(a.st_mode) and one.readlink() != other.readlink()
            if linked or (stat.S_ISREG(a.st_mode) and not filecmp.cmp(one, other, shallow=False)):
                what.append("content")
        if what:
            yield f"/{name}: {', '.join(what)}"


def _walk(root: Path) -> Iterator[str]:
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            yield str((Path(folder) / name).relative_to(root))
