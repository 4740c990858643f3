"""Is an image the same when it is built again, elsewhere and later? What differs is named, file by file."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from ci.image.builders import Built, Order, Place
from ci.image.context import link_tree
from ci.image.engine import Engine
from provisioning.base.errors import ToolkitError

REMEDY = "find what writes it in docker/, and make it write the same or remove it"
REMEDIES = {
    "/etc: time": "build on a base that has an /etc/hosts, which docker before 23 otherwise makes and takes"
    " away at each step; or use --builder buildah",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    first: Built
    second: Built
    differing: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.first == self.second

    @property
    def faults(self) -> Iterator[tuple[str, str]]:
        """Each difference, and what mends it."""
        for line in dict.fromkeys(self.differing) or ("nothing that an image holds, but its digest",):
            yield line, REMEDIES.get(line, REMEDY)


def build_twice(
    order: Order, engine: Engine, place_in: Callable[[Path, Engine], Place], scratch: Path
) -> Comparison:
    """Build in two places, from two copies of the context, with nothing shared between them but the base."""
    shutil.rmtree(scratch, ignore_errors=True)
    built: list[Built] = []
    places: list[tuple[Place, Order]] = []
    try:
        for name in ("here", "elsewhere"):
            context = scratch / name / "context"
            link_tree(order.context, "", context)
            own_tag = f"{order.tag.rpartition(':')[0]}:compared-{name}"
            own = replace(order, context=context, tag=own_tag, log=scratch / f"{name}.log")
            place = place_in(scratch / name, engine)
            places.append((place, own))
            built.append(place.build(own))
        differing: tuple[str, ...] = ()
        if built[0] != built[1]:
            archives = scratch / "here" / "image.tar", scratch / "elsewhere" / "image.tar"
            for (place, own), archive in zip(places, archives, strict=True):
                place.save(own, archive)
            differing = tuple(differences(*archives))
        return Comparison(built[0], built[1], differing)
    finally:
        for place, own in places:
            # What cannot be discarded must not hide why a build failed.
            with suppress(ToolkitError):
                place.discard(own)
        for name in ("here", "elsewhere"):
            shutil.rmtree(scratch / name, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a layer says of one of its files."""

    kind: bytes
    mode: int
    owner: int
    group: int
    time: float
    content: str


def differences(first: Path, second: Path) -> Iterator[str]:
    """What two saved images do not have in common: files, with what differs of each, then settings."""
    with tarfile.open(first) as one, tarfile.open(second) as other:
        (said, layers), (other_said, other_layers) = _image(one), _image(other)
        if len(layers) != len(other_layers):
            yield f"the number of layers: {len(layers)} and {len(other_layers)}"
        ids = zip(said["rootfs"]["diff_ids"], other_said["rootfs"]["diff_ids"], strict=False)
        for (a, b), layer, other_layer in zip(ids, layers, other_layers, strict=False):
            if a != b:
                yield from _differing(_entries(one, layer), _entries(other, other_layer))
        for name in sorted({*said, *other_said} - {"rootfs", "history", "created"}):
            if said.get(name) != other_said.get(name):
                yield f"the settings: {name}"


def _differing(first: dict[str, Entry], second: dict[str, Entry]) -> Iterator[str]:
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            yield f"/{name}: only in the {'first' if name in first else 'second'}"
            continue
        one, other = first[name], second[name]
        what = [f.name for f in fields(Entry) if getattr(one, f.name) != getattr(other, f.name)]
        if what:
            yield f"/{name}: {', '.join(what)}"


def _image(archive: tarfile.TarFile) -> tuple[dict[str, Any], list[str]]:
    """Settings, and the names of the layers."""
    manifest = json.load(_member(archive, "manifest.json"))[0]
    return json.load(_member(archive, manifest["Config"])), manifest["Layers"]


def _entries(archive: tarfile.TarFile, layer: str) -> dict[str, Entry]:
    with tarfile.open(fileobj=_member(archive, layer)) as files:
        return {
            one.name.removeprefix("./"): Entry(
                one.type, one.mode, one.uid, one.gid, one.mtime, _content(files, one)
            )
            for one in files
        }


def _content(files: tarfile.TarFile, one: tarfile.TarInfo) -> str:
    stream = files.extractfile(one) if one.isreg() else None
    if stream is None:
        return one.linkname
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    assert stream is not None, f"{name} of {archive.name!r} is no file"
    return stream
