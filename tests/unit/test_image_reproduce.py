"""The differences of two saved images, and what is left of the folders that they were built in."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ci.image.builders import BuiltImage, Docker, Order
from ci.image.engine import Engine
from ci.image.reproduce import build_twice, differences

NONE = Engine.__new__(Engine)


def entry(name: str, **changes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for attribute, value in changes.items():
        setattr(info, attribute, value)
    return info


Layer = Mapping[tarfile.TarInfo, bytes]
FILE = "etc/file"


def saved(path: Path, *layers: Layer) -> Path:
    """As `docker save` writes an image."""
    parts: dict[str, bytes] = {}
    for number, layer in enumerate(layers):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as files:
            for info, content in layer.items():
                info.size = len(content)
                files.addfile(info, io.BytesIO(content))
        parts[f"{number}/layer.tar"] = stream.getvalue()
    names = list(parts)
    diff_ids = [str(hash(content)) for content in parts.values()]
    parts["config.json"] = json.dumps({"rootfs": {"diff_ids": diff_ids}}).encode()
    parts["manifest.json"] = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    with tarfile.open(path, "w") as archive:
        for name, content in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({entry(FILE): b"content"}, {entry(FILE): b"content"}, []),
        ({entry(FILE): b"one"}, {entry(FILE): b"two"}, ["/etc/file: content"]),
        ({entry("a"): b""}, {entry("b"): b""}, ["/a: only in the first", "/b: only in the second"]),
        ({entry(FILE): b""}, {entry(FILE, mode=7): b""}, ["/etc/file: mode"]),
        ({entry(FILE): b""}, {entry(FILE, uid=7): b""}, ["/etc/file: owner"]),
        ({entry(FILE): b""}, {entry(FILE, mtime=7): b""}, ["/etc/file: time"]),
    ],
)
def test_differences_of_files_are_named(tmp_path: Path, one: Layer, other: Layer, named: list[str]) -> None:
    images = saved(tmp_path / "one.tar", one), saved(tmp_path / "other.tar", other)
    assert list(differences(*images)) == named


@dataclass(frozen=True)
class Workshop(Docker):
    """Gives one image after the other."""

    program: str = ""
    buildx: bool = False
    images: list[BuiltImage] = field(default_factory=list)

    def build_apart(self, order: Order, engine: Engine) -> BuiltImage:
        return self.images.pop()

    def save(self, order: Order, engine: Engine, archive: Path) -> None:
        saved(archive, {entry("content"): order.tag.encode()})

    def discard(self, order: Order, engine: Engine) -> None: ...


@pytest.fixture
def order(tmp_path: Path) -> Order:
    context = tmp_path / "context"
    (context / "docker").mkdir(parents=True)
    return Order(context, "base", "b", "b", "qnn-ci/base:latest", 1, {}, {}, tmp_path / "build.log")


SAME = BuiltImage("sha256:1", ("sha256:2",))


def test_only_two_digests_have_their_files_compared(order: Order, tmp_path: Path) -> None:
    same = build_twice(order, NONE, Workshop(images=[SAME, SAME]), tmp_path / "twice")
    assert (same.same, same.differing) == (True, ())
    builder = Workshop(images=[SAME, replace(SAME, digest="sha256:3")])
    other = build_twice(order, NONE, builder, tmp_path / "twice")
    assert (other.same, other.differing) == (False, ("/content: content",))
