"""Which program builds, how it is called, and what its failures mean."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.image.builders import Buildah, Built, Docker, Order, choose, failure
from ci.image.engine import Engine
from provisioning.base.errors import CheckFailed, EnvironmentLacking

NONE = Engine.__new__(Engine)
"""docker's own client builds in the engine, without our help."""


def program(folder: Path, name: str, body: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(0o755)
    return str(path)


def docker(folder: Path, version: str, buildx: bool = False) -> str:
    plugin = 'print("github.com/docker/buildx v0.17.1")' if buildx else "sys.exit(1)"
    said = f'print("Docker version {version}, build 1")'
    return program(folder, "docker", f"if 'buildx' in sys.argv:\n    {plugin}\nelse:\n    {said}")


def test_a_client_with_the_plugin_builds_by_it(tmp_path: Path) -> None:
    found = docker(tmp_path / "a", "28.2.2", buildx=True)
    assert choose("auto", {"PATH": str(tmp_path / "a")}) == Docker(found, buildx=True)


@pytest.mark.parametrize("version", ["18.09.1", "22.9.0+dfsg1"])
def test_an_older_client_speaks_buildkit_itself(tmp_path: Path, version: str) -> None:
    found = docker(tmp_path / "a", version)
    assert choose("auto", {"PATH": str(tmp_path / "a")}) == Docker(found, buildx=False)


@pytest.mark.parametrize("version", ["18.06.3-ce", "23.0.0"])
def test_a_client_that_speaks_no_buildkit_without_the_plugin_is_passed_over(
    tmp_path: Path, version: str
) -> None:
    docker(tmp_path / "a", version)
    found = docker(tmp_path / "b", "20.10.24")
    assert choose("docker", {"PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"}) == Docker(found, buildx=False)


def test_a_client_that_answers_something_else_has_no_plugin(tmp_path: Path) -> None:
    program(tmp_path / "a", "docker", 'print("Docker version 28.2.2, build 1")')
    with pytest.raises(EnvironmentLacking, match="no docker on PATH can build"):
        choose("docker", {"PATH": str(tmp_path / "a")})


def test_buildah_serves_where_no_docker_can(tmp_path: Path) -> None:
    docker(tmp_path / "a", "28.2.2")
    found = program(tmp_path / "a", "buildah", "")
    assert choose("auto", {"PATH": str(tmp_path / "a")}) == Buildah(found)


def test_buildah_is_taken_when_asked_for(tmp_path: Path) -> None:
    docker(tmp_path / "a", "20.10.24")
    found = program(tmp_path / "a", "buildah", "")
    assert choose("buildah", {"PATH": str(tmp_path / "a")}) == Buildah(found)


def test_who_asks_for_docker_does_not_get_buildah(tmp_path: Path) -> None:
    program(tmp_path / "a", "buildah", "")
    with pytest.raises(EnvironmentLacking, match="no docker on PATH can build with BuildKit"):
        choose("docker", {"PATH": str(tmp_path / "a")})


@pytest.mark.parametrize("wanted", ["auto", "docker", "buildah"])
def test_no_builder_at_all_says_what_to_install(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        choose(wanted, {"PATH": str(tmp_path)})
    assert "apt-get install" in caught.value.remedy


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


def test_docker_builds_without_network(tmp_path: Path) -> None:
    said = program(tmp_path / "a", "docker", "print(sys.argv[1:])")
    Docker(said, buildx=False).build(order(tmp_path), NONE)
    log = (tmp_path / "logs" / "build.log").read_text()
    assert log.startswith("['build', '--network', 'none'")


def test_buildx_builds_in_the_engine_whatever_builder_the_user_has_chosen(tmp_path: Path) -> None:
    said = program(tmp_path / "a", "docker", "print(sys.argv[1:])")
    Docker(said, buildx=True).build(order(tmp_path), NONE)
    log = (tmp_path / "logs" / "build.log").read_text()
    assert log.startswith("['buildx', 'build', '--builder', 'default', '--load'")


def test_nothing_of_the_build_itself_is_attested_into_the_image(tmp_path: Path) -> None:
    asked = "import os; print(os.environ['BUILDX_NO_DEFAULT_ATTESTATIONS'])"
    Docker(program(tmp_path / "a", "docker", asked), buildx=True).build(order(tmp_path), NONE)
    assert (tmp_path / "logs" / "build.log").read_text() == "1\n"


class Holding(Engine):
    """Stands for an engine that holds an image with these layers, made at some hour."""

    def __init__(self, *layers: str) -> None:
        self.layers = layers
        self.asked = 0
        self.told: list[tuple[str, ...]] = []

    def attributes(self, reference: str) -> dict[str, Any]:
        self.asked += 1
        same = {"Architecture": "amd64", "Os": "linux", "Config": {"User": "dev"}}
        return {**same, "RootFS": {"Layers": list(self.layers)}, "Created": f"at {self.asked}"}

    def save(self, reference: str, path: Path) -> None:
        self.told.append(("save", reference, path.name))

    def remove(self, reference: str) -> None:
        self.told.append(("remove", reference))


def placed(tmp_path: Path, engine: Engine) -> Built:
    said = program(tmp_path / "a", "docker", "print(sys.argv[1:])")
    return Docker(said, buildx=False).workspace(tmp_path, engine).build(order(tmp_path))


def test_docker_builds_anew_what_is_to_be_compared(tmp_path: Path) -> None:
    placed(tmp_path, Holding("sha256:1"))
    assert "'--no-cache'" in (tmp_path / "logs" / "build.log").read_text()


def test_a_place_of_docker_saves_and_removes_what_it_built(tmp_path: Path) -> None:
    engine = Holding("sha256:1")
    place = Docker("docker", buildx=False).workspace(tmp_path, engine)
    place.save(order(tmp_path), tmp_path / "image.tar")
    place.discard(order(tmp_path))
    assert engine.told == [
        ("save", "qnn-ci/wheels:latest", "image.tar"),
        ("remove", "qnn-ci/wheels:latest"),
    ]


def test_the_hour_of_a_docker_build_is_not_compared(tmp_path: Path) -> None:
    engine = Holding("sha256:1")
    assert placed(tmp_path, engine) == placed(tmp_path, engine)


def test_layers_of_a_docker_build_are_compared(tmp_path: Path) -> None:
    one, other = (placed(tmp_path, Holding(layer)) for layer in ("sha256:1", "sha256:2"))
    assert one.digest != other.digest


def test_both_builders_are_told_stage_base_and_labels(tmp_path: Path) -> None:
    flags = order(tmp_path).flags
    assert flags[2:4] == ["--target", "qnn-sdk"]
    assert "BASE=debian@sha256:1" in flags and "SOURCE_DATE_EPOCH=5" in flags
    assert flags.index("a=1") < flags.index("b=2")


class Keeping(Engine):
    """Stands for an engine that gives what it is asked for, and keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def save(self, reference: str, path: Path) -> None:
        path.write_text(reference)

    def load(self, path: Path) -> None:
        self.kept.append(path.read_text())


@dataclass
class Workbench:
    """A buildah that writes down how it was called, with what storage, and which base it pulled."""

    folder: Path
    program: str

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def roots(self) -> set[Path]:
        return set(map(Path, (self.folder / "roots").read_text().splitlines()))


@pytest.fixture
def workbench(tmp_path: Path) -> Callable[..., Workbench]:
    def made(fails: str = "") -> Workbench:
        said = '{"FromImageDigest": "sha256:1", "OCIv1": {"rootfs": {"diff_ids": ["sha256:2"]}}}'
        script = f"""#!/bin/sh
            if [ "$1 $3" = "--root --runroot" ]; then echo "$2" >> {tmp_path}/roots; shift 4; else exit 9; fi
            echo "$*" >> {tmp_path}/calls
            if [ "$1" = "{fails}" ]; then echo "it cannot" >&2; exit 1; fi
            case "$1" in
            pull) cat "${{3#docker-archive:}}" >> {tmp_path}/pulled; echo Trying; echo sha256:base ;;
            push) file="${{3#docker-archive:}}"; echo "$2" > "${{file%%:*}}" ;;
            inspect) echo '{said}' ;;
            containers) echo c1; echo c2 ;;
            esac
            """
        program = tmp_path / "buildah"
        program.write_text(script)
        program.chmod(0o755)
        return Workbench(tmp_path, str(program))

    return made


def test_buildah_builds_apart_from_the_users_images_and_leaves_nothing(
    workbench: Callable[..., Workbench], tmp_path: Path
) -> None:
    bench, engine = workbench(), Keeping()
    (tmp_path / "context").mkdir()
    Buildah(bench.program).build(order(tmp_path / "context"), engine)
    assert engine.kept == ["qnn-ci/wheels:latest\n"]
    assert (tmp_path / "pulled").read_text() == "sha256:2"
    verbs = [call.split()[0] for call in bench.calls()]
    assert verbs == ["pull", "build", "push", "containers", "rm", "rm", "rmi"]
    assert {root.parent.parent for root in bench.roots()} == {tmp_path}
    assert not list(tmp_path.glob("qnn-ci-image-*"))


def test_buildah_takes_nothing_from_elsewhere_and_no_time_but_the_orders(
    workbench: Callable[..., Workbench], tmp_path: Path
) -> None:
    bench = workbench()
    Buildah(bench.program, tmp_path / "storage").build_apart(order(tmp_path), tmp_path / "calls")
    build = bench.calls()[1]
    for flag in ("--pull-never", "--no-cache", "--timestamp 5", "--build-arg BASE=sha256:base"):
        assert flag in build
    assert build.endswith(f"--tag qnn-ci/wheels:latest {tmp_path}")


def test_a_place_of_buildah_says_what_it_built_and_keeps_it_until_it_is_discarded(
    workbench: Callable[..., Workbench], tmp_path: Path
) -> None:
    bench = workbench()
    (tmp_path / "context").mkdir()
    one = order(tmp_path / "context")
    place = Buildah(bench.program).workspace(tmp_path / "here", Keeping())
    assert place.build(one) == Built("sha256:1", ("sha256:2",))
    assert [call.split()[0] for call in bench.calls()] == ["pull", "build", "inspect"]
    assert (tmp_path / "pulled").read_text() == one.base_id
    place.save(one, tmp_path / "saved.tar")
    assert (tmp_path / "saved.tar").read_text() == "qnn-ci/wheels:latest\n"
    assert "rmi --all --force" not in bench.calls()
    place.discard(one)
    assert bench.calls()[-1] == "rmi --all --force"
    assert bench.roots() == {tmp_path / "here" / "storage"}


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
    with pytest.raises(AssertionError, match="the user's own images stay"):
        Buildah(workbench().program).discard()
    assert not (tmp_path / "calls").exists()


def test_a_build_that_fails_shows_its_last_lines_and_its_log(tmp_path: Path) -> None:
    failing = program(tmp_path / "a", "docker", "print('E: Unable to locate'); sys.exit(1)")
    with pytest.raises(CheckFailed, match="E: Unable to locate") as caught:
        Docker(failing, buildx=False).build(order(tmp_path), NONE)
    assert caught.value.remedy == f"less {tmp_path / 'logs' / 'build.log'}"


@pytest.mark.parametrize("said", ["write /a: no space left on device", "dpkg: /a (No space left on device)"])
def test_a_full_disk_is_the_environments_fault(said: str) -> None:
    fault = failure("building", f"#8 writing\n{said}\nmore", "less log")
    assert isinstance(fault, EnvironmentLacking) and said in fault.message
    assert "docker system prune" in fault.remedy


def test_a_socket_that_refuses_us_is_the_environments_fault() -> None:
    said = "Got permission denied while trying to connect to the Docker daemon socket"
    assert isinstance(failure("building", said, "less log"), EnvironmentLacking)
