"""Builds an image twice and compares: every file that differs is named."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

from ci.image.builders import Builder, BuiltImage, Order
from ci.image.context import link_tree
from ci.image.engine import Engine
from provisioning.base.errors import ToolkitError

Entries: TypeAlias = dict[str, dict[str, object]]
"""What a layer says of each file."""
FIX = "find what writes it in docker/, and make it write the same or remove it"
FIXES = {
    "/etc: time": "build on a base that has an /etc/hosts, which docker before 23 otherwise makes and takes"
    " away at each step; or use --builder buildah",
}


@dataclass(frozen=True, slots=True)
class ImageComparison:
    first: BuiltImage
    second: BuiltImage
    differing: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.first == self.second

    @property
    def problems(self) -> Iterator[tuple[str, str]]:
        """Each difference, and how to fix it."""
        for line in dict.fromkeys(self.differing) or ("nothing that an image holds, but its digest",):
            yield line, FIXES.get(line, FIX)


def build_twice(order: Order, engine: Engine, builder: Builder, scratch: Path) -> ImageComparison:
    """Build from two copies of the context with two builders that share nothing but the base."""
    shutil.rmtree(scratch, ignore_errors=True)
    built: list[BuiltImage] = []
    places: list[tuple[Builder, Order]] = []
    try:
        for name in ("here", "elsewhere"):
            context = scratch / name / "context"
            link_tree(order.context, "", context)
            own_tag = f"{order.tag.rpartition(':')[0]}:compared-{name}"
            own = replace(order, context=context, tag=own_tag, log=scratch / f"{name}.log")
            places.append((builder.apart(scratch / name), own))
            built.append(places[-1][0].build_apart(own, engine))
        differing: tuple[str, ...] = ()
        if built[0] != built[1]:
            archives = scratch / "here" / "image.tar", scratch / "elsewhere" / "image.tar"
            for (apart, own), archive in zip(places, archives, strict=True):
                apart.save(own, engine, archive)
            differing = tuple(differences(*archives))
        return ImageComparison(built[0], built[1], differing)
    finally:
        for apart, own in places:
            # An error here must not hide why the build failed.
            with suppress(ToolkitError):
                apart.discard(own, engine)
        for name in ("here", "elsewhere"):
            shutil.rmtree(scratch / name, ignore_errors=True)


def differences(first: Path, second: Path) -> Iterator[str]:
    """The differences of two saved images: files, with what differs of each, then settings."""
    with tarfile.open(first) as one, tarfile.open(second) as other:
        (settings, layers), (other_settings, other_layers) = _image(one), _image(other)
        if len(layers) != len(other_layers):
            yield f"the number of layers: {len(layers)} and {len(other_layers)}"
        ids = zip(settings["rootfs"]["diff_ids"], other_settings["rootfs"]["diff_ids"], strict=False)
        for (a, b), layer, other_layer in zip(ids, layers, other_layers, strict=False):
            if a != b:
                yield from _differing(_entries(one, layer), _entries(other, other_layer))
        for name in sorted({*settings, *other_settings} - {"rootfs", "history", "created"}):
            if settings.get(name) != other_settings.get(name):
                yield f"the settings: {name}"


def _differing(first: Entries, second: Entries) -> Iterator[str]:
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            yield f"/{name}: only in the {'first' if name in first else 'second'}"
            continue
        if what := [key for key, value in first[name].items() if second[name][key] != value]:
            yield f"/{name}: {', '.join(what)}"


def _image(archive: tarfile.TarFile) -> tuple[dict[str, Any], list[str]]:
    """Settings, and the names of the layers."""
    manifest = json.load(_member(archive, "manifest.json"))[0]
    return json.load(_member(archive, manifest["Config"])), manifest["Layers"]


def _entries(archive: tarfile.TarFile, layer: str) -> Entries:
    with tarfile.open(fileobj=_member(archive, layer)) as files:
        return {
            member.name.removeprefix("./"): {
                "kind": member.type,
                "mode": member.mode,
                "owner": member.uid,
                "group": member.gid,
                "time": member.mtime,
                "content": _content(files, member),
            }
            for member in files
        }


def _content(files: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    stream = files.extractfile(member) if member.isreg() else None
    if stream is None:
        return member.linkname
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    assert stream is not None, f"{name} of {archive.name!r} is not a file"
    return stream
