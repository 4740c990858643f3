"""The differences of two saved images, and what is left of the folders that they were built in."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.image.reproduce import differences


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", attribute: tuple[str, int] = ("time", 0)
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    field_name = {"time": "mtime", "owner": "uid", "group": "gid"}.get(attribute[0], attribute[0])
    setattr(info, field_name, attribute[1])
    return info


Layer = Mapping[tarfile.TarInfo, bytes]
FILE = "etc/file"


def saved(path: Path, *layers: Layer, **settings: object) -> Path:
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
    parts["config.json"] = json.dumps({"rootfs": {"diff_ids": diff_ids}, **settings}).encode()
    parts["manifest.json"] = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    with tarfile.open(path, "w") as archive:
        for name, content in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def link(to: str) -> tarfile.TarInfo:
    return entry("link", kind=tarfile.SYMTYPE, link=to)


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({entry(FILE): b"content"}, {entry(FILE): b"content"}, []),
        ({entry(FILE): b"one"}, {entry(FILE): b"two"}, ["/etc/file: content"]),
        ({entry("a"): b""}, {entry("b"): b""}, ["/a: only in the first", "/b: only in the second"]),
        ({link("here"): b""}, {link("there"): b""}, ["/link: content"]),
        *(
            ({entry(FILE): b""}, {entry(FILE, attribute=(what, 7)): b""}, [f"/etc/file: {what}"])
            for what in ("mode", "owner", "group", "time")
        ),
    ],
    ids=["equal", "content of the same size", "file of one alone", "link", "mode", "owner", "group", "time"],
)
def test_differences_of_files_are_named(tmp_path: Path, one: Layer, other: Layer, named: list[str]) -> None:
    images = saved(tmp_path / "one.tar", one), saved(tmp_path / "other.tar", other)
    assert list(differences(*images)) == named


def test_equal_layers_and_equal_settings_are_not_named_and_the_time_of_the_build_neither(
    tmp_path: Path,
) -> None:
    same = {entry("same"): b""}
    user, root = {"User": "dev"}, {"User": "root"}
    one = saved(tmp_path / "one.tar", same, {entry("a"): b"1"}, created="now", history=["now"], config=user)
    other = saved(tmp_path / "other.tar", same, {entry("a"): b"2"}, created="later", history=[], config=root)
    assert list(differences(one, other)) == ["/a: content", "the settings: config"]
