"""What two saved images do not have in common, and what becomes of the places that they were built in."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ci.image.builders import Built, Order
from ci.image.context import link_tree
from ci.image.engine import Engine
from ci.image.reproduce import Comparison, build_twice, differences
from provisioning.base.errors import CheckFailed

NONE = Engine.__new__(Engine)


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", said: tuple[str, int] = ("time", 0)
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    attribute = {"time": "mtime", "owner": "uid", "group": "gid"}.get(said[0], said[0])
    setattr(info, attribute, said[1])
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


def compared(tmp_path: Path, one: Layer, other: Layer) -> list[str]:
    return list(differences(saved(tmp_path / "one.tar", one), saved(tmp_path / "other.tar", other)))


def test_equal_images_do_not_differ(tmp_path: Path) -> None:
    assert compared(tmp_path, {entry(FILE): b"content"}, {entry(FILE): b"content"}) == []


def test_content_of_the_same_size_is_told_apart(tmp_path: Path) -> None:
    assert compared(tmp_path, {entry(FILE): b"one"}, {entry(FILE): b"two"}) == ["/etc/file: content"]


@pytest.mark.parametrize("what", ["mode", "owner", "group", "time"])
def test_what_is_said_of_a_file_is_told_apart(tmp_path: Path, what: str) -> None:
    assert compared(tmp_path, {entry(FILE): b""}, {entry(FILE, said=(what, 7)): b""}) == [
        f"/etc/file: {what}"
    ]


def test_what_is_the_same_is_not_named(tmp_path: Path) -> None:
    one = saved(
        tmp_path / "one.tar", {entry("same"): b"", entry("a"): b"1"}, os="linux", config={"User": "a"}
    )
    other = saved(
        tmp_path / "other.tar", {entry("same"): b"", entry("a"): b"2"}, os="linux", config={"User": "b"}
    )
    assert list(differences(one, other)) == ["/a: content", "the settings: config"]


def test_links_elsewhere_are_told_apart(tmp_path: Path) -> None:
    one, other = (entry("link", kind=tarfile.SYMTYPE, link=to) for to in ("here", "there"))
    assert compared(tmp_path, {one: b""}, {other: b""}) == ["/link: content"]


def test_a_file_of_one_image_alone_is_named(tmp_path: Path) -> None:
    assert compared(tmp_path, {entry("a"): b""}, {entry("b"): b""}) == [
        "/a: only in the first",
        "/b: only in the second",
    ]


def test_layers_that_are_the_same_are_passed_over(tmp_path: Path) -> None:
    same = {entry("same"): b""}
    one = saved(tmp_path / "one.tar", same, {entry("a"): b"1"})
    other = saved(tmp_path / "other.tar", same, {entry("a"): b"2"})
    assert list(differences(one, other)) == ["/a: content"]


def test_one_layer_more_is_said(tmp_path: Path) -> None:
    one = saved(tmp_path / "one.tar", {entry("a"): b""})
    other = saved(tmp_path / "other.tar", {entry("a"): b""}, {entry("b"): b""})
    assert list(differences(one, other)) == ["the number of layers: 1 and 2"]


def test_settings_are_told_apart_but_not_the_hour_of_the_build(tmp_path: Path) -> None:
    one = saved(tmp_path / "one.tar", created="today", history=["today"], config={"User": "dev"})
    other = saved(tmp_path / "other.tar", created="later", history=["later"], config={"User": "root"})
    assert list(differences(one, other)) == ["the settings: config"]


@dataclass
class Workshop:
    """Builds what it is told to, and remembers."""

    outcomes: list[Built | Exception]
    content: dict[str, bytes] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)

    def place(self, folder: Path, engine: Engine) -> Workshop:
        return self

    def build(self, order: Order) -> Built:
        self.orders.append(order)
        outcome = self.outcomes[len(self.orders) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def save(self, order: Order, archive: Path) -> None:
        saved(archive, {entry("made"): order.tag.encode()})

    def discard(self, order: Order) -> None:
        self.discarded.append(order.tag)


@pytest.fixture
def order(tmp_path: Path) -> Order:
    context = tmp_path / "context"
    (context / "docker").mkdir(parents=True)
    return Order(context, "base", "b", "b", "qnn-ci/base:latest", 1, {}, {}, tmp_path / "build.log")


SAME = Built("sha256:1", ("sha256:2",))


def test_two_builds_share_neither_folder_nor_name(order: Order, tmp_path: Path) -> None:
    workshop = Workshop([SAME, SAME])
    build_twice(order, NONE, workshop.place, tmp_path / "twice")
    assert len({(one.context, one.tag, one.log) for one in [order, *workshop.orders]}) == 3


@pytest.mark.parametrize("left", [False, True], ids=["new", "after one that was killed"])
def test_both_builds_have_all_of_the_context(order: Order, tmp_path: Path, left: bool) -> None:
    if left:
        (tmp_path / "older").mkdir()
        link_tree(tmp_path / "older", "", tmp_path / "twice" / "here" / "context")
    (order.context / "docker" / "Dockerfile").write_text("FROM base")
    seen = []

    @dataclass
    class Reading(Workshop):
        def build(self, order: Order) -> Built:
            seen.append((order.context / "docker" / "Dockerfile").read_text())
            return super().build(order)

    build_twice(order, NONE, Reading([SAME, SAME]).place, tmp_path / "twice")
    assert seen == ["FROM base", "FROM base"]


def test_two_builds_with_one_digest_are_the_same(order: Order, tmp_path: Path) -> None:
    comparison = build_twice(order, NONE, Workshop([SAME, SAME]).place, tmp_path / "twice")
    assert (comparison.same, comparison.differing) == (True, ())


def test_two_digests_have_their_files_compared(order: Order, tmp_path: Path) -> None:
    builder = Workshop([SAME, replace(SAME, digest="sha256:3")])
    comparison = build_twice(order, NONE, builder.place, tmp_path / "twice")
    assert (comparison.same, comparison.differing) == (False, ("/made: content",))


def test_what_differs_in_several_layers_is_said_once() -> None:
    comparison = Comparison(SAME, SAME, ("/a: time", "/a: time"))
    assert [line for line, _ in comparison.problems] == ["/a: time"]


def test_two_digests_are_a_fault_though_nothing_else_differs() -> None:
    assert len(list(Comparison(SAME, replace(SAME, digest="sha256:3"), ()).problems)) == 1


def test_the_trace_of_an_old_docker_names_what_mends_it() -> None:
    (fault,) = Comparison(SAME, SAME, ("/etc: time",)).problems
    assert "--builder buildah" in fault[1]


def test_a_build_that_fails_leaves_nothing(order: Order, tmp_path: Path) -> None:
    workshop = Workshop([SAME, CheckFailed("no")])
    with pytest.raises(CheckFailed):
        build_twice(order, NONE, workshop.place, tmp_path / "twice")
    assert workshop.discarded == [one.tag for one in workshop.orders]
    assert not any(path.is_dir() for path in (tmp_path / "twice").iterdir())
