"""How the programs that build images are called, and what their failures mean."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.image.builders import Buildah, Docker, Order
from ci.image.engine import Engine
from provisioning.base.errors import CheckFailed
from tests.support.scripts import script

NONE = Engine.__new__(Engine)
"""Docker's own client builds in the engine: ours is not used."""


def order(folder: Path) -> Order:
    return Order(
        context=folder,
        stage="qnn-sdk",
        base="debian@sha256:1",
        base_id="sha256:2",
        tag="qnn-ci/wheels:latest",
        epoch=5,
        arguments={"PROFILE": "wheels"},
        labels={"b": "2", "a": "1"},
        log=folder / "logs" / "build.log",
    )


@pytest.mark.parametrize(
    ("buildx", "verb"),
    [(False, ["build"]), (True, ["buildx", "build", "--builder", "default", "--load"])],
)
def test_docker_builds_in_the_engine_without_network_and_attests_nothing(
    tmp_path: Path, buildx: bool, verb: list[str]
) -> None:
    text = "import os, sys; print([*sys.argv[1:], os.environ['BUILDX_NO_DEFAULT_ATTESTATIONS']])"
    program = script(tmp_path / "docker", text, sys.executable)
    Docker(str(program), buildx).build(order(tmp_path), NONE)
    words = ast.literal_eval((tmp_path / "logs" / "build.log").read_text())
    assert words[: len(verb) + 2] == [*verb, "--network", "none"]
    assert words[-1] == "1"


class Keeping(Engine):
    """An engine that saves any image, and keeps what is loaded."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def save(self, reference: str, path: Path) -> None:
        path.write_text(reference)

    def load(self, path: Path) -> None:
        self.kept.append(path.read_text())


@dataclass
class Workbench:
    """A buildah that notes its calls, its storage, and the base that it pulled."""

    folder: Path
    program: str

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def roots(self) -> set[Path]:
        return set(map(Path, (self.folder / "roots").read_text().splitlines()))


@pytest.fixture
def workbench(tmp_path: Path) -> Callable[..., Workbench]:
    def workbench(fails: str = "") -> Workbench:
        image = '{"FromImageDigest": "sha256:1", "OCIv1": {"rootfs": {"diff_ids": ["sha256:2"]}}}'
        text = f"""
            if [ "$1 $3" = "--root --runroot" ]; then echo "$2" >> {tmp_path}/roots; shift 4; else exit 9; fi
            echo "$*" >> {tmp_path}/calls
            if [ "$1" = "{fails}" ]; then echo "it cannot" >&2; exit 1; fi
            case "$1" in
            pull) cat "${{3#docker-archive:}}" >> {tmp_path}/pulled; echo Trying; echo sha256:base ;;
            push) file="${{3#docker-archive:}}"; echo "$2" > "${{file%%:*}}" ;;
            inspect) echo '{image}' ;;
            containers) echo c1; echo c2 ;;
            esac
            """
        return Workbench(tmp_path, str(script(tmp_path / "buildah", text)))

    return workbench


def test_buildah_builds_apart_from_the_users_images_and_leaves_nothing(
    workbench: Callable[..., Workbench], tmp_path: Path
) -> None:
    bench, engine = workbench(), Keeping()
    (tmp_path / "context").mkdir()
    Buildah(bench.program).build(order(tmp_path / "context"), engine)
    assert engine.kept == ["qnn-ci/wheels:latest\n"]
    assert (tmp_path / "pulled").read_text() == "sha256:2"
    verbs = [call.split()[0] for call in bench.calls()]
    assert verbs == ["pull", "build", "inspect", "push", "containers", "rm", "rm", "rmi"]
    assert {root.parent.parent for root in bench.roots()} == {tmp_path}
    assert not list(tmp_path.glob("qnn-ci-image-*"))


@pytest.mark.parametrize("fails", ["pull", "build", "push"])
def test_a_buildah_that_fails_leaves_no_image_and_says_why(
    workbench: Callable[..., Workbench], tmp_path: Path, fails: str
) -> None:
    bench, engine = workbench(fails), Keeping()
    (tmp_path / "context").mkdir()
    with pytest.raises(CheckFailed, match="it cannot"):
        Buildah(bench.program).build(order(tmp_path / "context"), engine)
    assert engine.kept == []
    assert bench.calls()[-1] == "rmi --all --force"


def test_the_users_own_images_are_never_removed(workbench: Callable[..., Workbench], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        Buildah(workbench().program).discard(order(tmp_path), NONE)
    assert not (tmp_path / "calls").exists()
