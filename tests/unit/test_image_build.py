"""Images by their layers: which are built, which are kept for the next image, and two builds compared."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any

import pytest

from ci.image.contents import Order, build, build_twice, differences, files_of, plan_of
from ci.image.engine import ContainerCommand, Engine
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from tests.support.image_archives import tar

FILE = "etc/file"


def entry(name: str, **changes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for attribute, value in changes.items():
        setattr(info, attribute, value)
    return info


Files = Mapping[tarfile.TarInfo, bytes]


def saved(path: Path, *layers: Files) -> Path:
    """As `docker save` writes an image."""
    parts: dict[str, bytes] = {}
    for number, layer in enumerate(layers):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as files:
            for info, content in layer.items():
                info.size = len(content)
                files.addfile(info, io.BytesIO(content))
        parts[f"{number}/layer.tar"] = stream.getvalue()
    manifest = json.dumps([{"Layers": list(parts)}]).encode()
    path.write_bytes(tar({**parts, "manifest.json": manifest}))
    return path


class Workshop(Engine):
    """An engine whose containers run nothing. Each commit is another image, with one file for each layer."""

    def __init__(self, contents: Sequence[bytes] = (), output: str = "", code: int = 0) -> None:
        self.contents = list(contents)
        self.result = CompletedProcess([], code, output, "")
        self.images: dict[str, list[bytes]] = {"sha256:base": []}
        self.settings: dict[str, Mapping[str, Any]] = {}
        self.jobs: list[ContainerCommand] = []

    def image_id(self, reference: str) -> str | None:
        return reference if reference in self.images else None

    def run(
        self, job: ContainerCommand, commit: str = "", settings: Mapping[str, object] = MappingProxyType({})
    ) -> CompletedProcess[str]:
        self.jobs.append(job)
        if commit and not self.result.returncode:
            content = self.contents.pop(0) if self.contents else b"same"
            self.images[commit] = [*self.images[job.image], content]
            self.settings[commit] = settings
        return self.result

    def attributes(self, reference: str) -> dict[str, Any]:
        layers = [str(hash(content)) for content in self.images[reference]]
        return {"Config": self.settings[reference], "RootFS": {"Layers": layers}}

    def save(self, reference: str, path: Path) -> None:
        saved(path, *({entry(FILE): content} for content in self.images[reference]))

    def remove(self, reference: str) -> None:
        self.images.pop(reference, None)

    @property
    def scripts(self) -> list[str]:
        return [" ".join(list(job.command)[-2:]) for job in self.jobs]


@pytest.fixture
def order(tmp_path: Path) -> Order:
    inputs = {name: Path("/", name) for name in ("packages", "environments", "qnn-sdk")}
    return Order(plan_of("wheels"), inputs, "sha256:base", {"a": "1"}, tmp_path / "logs" / "build.log")


def test_another_image_is_built_on_the_layers_that_are_the_same(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    build(order, engine, "qnn-ci/other:latest")
    assert engine.scripts[4:] == ["install-component qnn-sdk"]
    locks = {**order.plan.locks, "executorch": "other wheels"}
    build(replace(order, plan=replace(order.plan, locks=locks)), engine, "qnn-ci/other:latest")
    assert engine.scripts[5:] == ["make-environments executorch", "install-component qnn-sdk"]


def test_a_script_has_no_network_and_leaves_no_variable_and_no_mount_point(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    for job in engine.jobs:
        assert (job.network, dict(job.environment), list(job.tmpfs)) == ("none", {}, ["/mnt"])
        assert not job.outputs
        assert all(path.startswith("/mnt/") for path in job.inputs)
        assert f"SOURCE_DATE_EPOCH={order.plan.system.epoch}" in job.command


def test_the_image_has_its_labels_and_variables_and_is_no_roots(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    settings = engine.settings["qnn-ci/wheels:latest"]
    assert (settings["User"], settings["Labels"]) == ("dev", {"a": "1"})
    assert {"QNN_CI_PROFILE=wheels", "QNN_SDK_ROOT=/opt/qnn-ci/qnn-sdk"} <= set(settings["Env"])


def test_a_script_that_fails_leaves_no_image_and_its_last_lines_are_shown(order: Order) -> None:
    engine = Workshop(output="E: broken\n", code=100)
    with pytest.raises(CheckFailed, match="E: broken"):
        build(order, engine, "qnn-ci/wheels:latest")
    assert list(engine.images) == ["sha256:base"]
    assert "E: broken" in order.log.read_text()


def test_a_full_disk_is_the_machines_fault(order: Order) -> None:
    with pytest.raises(EnvironmentLacking):
        build(order, Workshop(output="cp: No space left on device\n", code=1), "qnn-ci/wheels:latest")


def test_two_builds_share_no_layer_and_leave_no_image(order: Order, tmp_path: Path) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    before = set(engine.images)
    (first, second), differing = build_twice(order, engine, tmp_path)
    assert (first == second, differing, len(engine.jobs)) == (True, [], 12)
    assert set(engine.images) == before


def test_a_file_that_differs_between_two_builds_is_named(order: Order, tmp_path: Path) -> None:
    engine = Workshop([b"one", b"", b"", b"", b"two", b"", b"", b""])
    (first, second), differing = build_twice(order, engine, tmp_path)
    assert (first == second, differing) == (False, ["layer 1: /etc/file: content"])
    assert list(engine.images) == ["sha256:base"]


def test_two_builds_whose_layers_differ_in_no_file_are_not_the_same(order: Order, tmp_path: Path) -> None:
    class Ordering(Workshop):
        """Its layers have the same files, in another order."""

        def save(self, reference: str, path: Path) -> None:
            saved(path, {entry(FILE): b"same"})

    engine = Ordering([b"one", b"", b"", b"", b"two", b"", b"", b""])
    (first, second), differing = build_twice(order, engine, tmp_path)
    assert (first == second, differing) == (False, ["the layers, and no file"])


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
def test_differences_of_files_are_named(tmp_path: Path, one: Files, other: Files, named: list[str]) -> None:
    images = (files_of(saved(tmp_path / "image.tar", files)) for files in (one, other))
    assert list(differences(*images)) == [f"layer 1: {line}" for line in named]
