"""Images by their layers: which are built, which are kept for the next image, and two builds compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any

import pytest

from ci.image.contents import Order, build, build_twice, compared_tags, plan_of
from ci.image.engine import ContainerCommand, Engine
from provisioning.base.errors import CheckFailed, EnvironmentLacking


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

    def remove(self, reference: str) -> None:
        self.images.pop(reference, None)

    @property
    def scripts(self) -> list[str]:
        return [" ".join(list(job.command)[-2:]) for job in self.jobs]


@pytest.fixture
def order(tmp_path: Path) -> Order:
    inputs = {name: Path("/", name) for name in ("packages", "environments", "qnn-sdk")}
    return Order(plan_of("wheels"), inputs, "sha256:base", {"a": "1"}, tmp_path / "logs" / "build.log")


def test_an_image_is_built_of_its_layers_in_order(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    assert engine.scripts == [
        "install-packages /mnt/packages",
        "nox tools",
        "make-environments executorch",
        "install-component qnn-sdk",
    ]
    assert list(engine.images) == ["sha256:base", "qnn-ci/wheels:latest"]


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


def test_two_builds_share_no_layer_and_leave_no_image(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    before = set(engine.images)
    (first, second), differing = build_twice(order, engine)
    assert (first == second, differing, len(engine.jobs)) == (True, [], 12)
    assert set(engine.images) == before


def test_a_layer_that_differs_between_two_builds_is_named_and_both_are_kept(order: Order) -> None:
    engine = Workshop([b"", b"one", b"", b"", b"", b"two", b"", b""])
    (first, second), differing = build_twice(order, engine)
    assert (first == second, differing) == (False, ["the layer of make-environments nox tools"])
    assert list(engine.images) == ["sha256:base", *compared_tags(order.plan)]
