"""Images for real: an engine, a base made of Debian packages, and the sessions inside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.image.builders import Order, choose, find_buildah
from ci.image.context import CONTEXT
from ci.image.engine import Engine, Job, connect
from ci.image.plan import STAGES, plan_of
from ci.image.reproduce import build_twice
from ci.image.shell import docker_run
from ci.lint import tracked_files
from provisioning.errors import EnvironmentLacking
from provisioning.manifest import COMPONENT_VARIABLES
from provisioning.settings import ROOT
from tests.support.engine import make_base, running

pytestmark = [pytest.mark.engine, pytest.mark.heavy, pytest.mark.timeout(1200)]

BASE = "qnn-ci-test-base:bookworm"
CALLER = 4321
"""Neither root nor the user that images know."""


@dataclass
class Stage:
    code: int
    said: str
    report: dict[str, Any]


def image(*arguments: str, reports: Path) -> Stage:
    done = subprocess.run(
        [sys.executable, "-m", "ci", "image", *arguments, "--base", BASE, "--reports", str(reports)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    path = reports / "image.json"
    return Stage(done.returncode, done.stdout + done.stderr, json.loads(path.read_text()))


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    with running(folder):
        started = connect()
        if started.image_id(BASE) is None:
            make_base(folder, BASE)
        yield started


@pytest.fixture(scope="module")
def wheels(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    subprocess.run([sys.executable, "-m", "provisioning", "provision"], cwd=ROOT, check=True)
    return image("wheels", reports=tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository's files, belonging to the caller."""
    root = tmp_path_factory.mktemp("caller") / "checkout"
    for path in tracked_files(ROOT):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (root / "build" / "image").mkdir(parents=True)
    for folder, names, files in os.walk(root):
        for name in (".", *names, *files):
            os.chown(Path(folder) / name, CALLER, CALLER)
    return root


def inside(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """As `shell --image wheels` runs it for the caller."""
    argv = docker_run(
        plan_of("wheels"),
        command,
        owner=f"{CALLER}:{CALLER}",
        terminal=False,
        environ={},
        where=checkout,
        root=checkout,
    )
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def test_the_wheels_image_is_built_and_validates_inside(wheels: Stage) -> None:
    assert (wheels.code, wheels.report["metrics"]["validate"]["outcome"]) == (0, "pass"), wheels.said


def test_the_image_says_what_it_is(wheels: Stage, engine: Engine) -> None:
    plan = plan_of("wheels")
    said = engine.attributes(plan.tag)["Config"]["Labels"]
    assert said["qnn-ci.manifest"] == plan.manifest_hash(str(engine.image_id(BASE)))


def test_the_bill_of_materials_names_what_is_inside(wheels: Stage) -> None:
    path = next(Path(a["path"]) for a in wheels.report["artifacts"] if a["kind"] == "sbom")
    names = {one["name"] for one in json.loads(path.read_text())["components"]}
    assert {"g++", "executorch", "torch", "qnn-sdk-x86-64"} <= names


def test_building_again_takes_all_from_the_cache(wheels: Stage, tmp_path: Path) -> None:
    again = image("wheels", "--no-validate", reports=tmp_path)
    metrics = again.report["metrics"]
    assert metrics["layers"] == wheels.report["metrics"]["layers"]
    assert metrics["context_seconds"] + metrics["build_seconds"] <= 5


def test_what_a_caller_writes_belongs_to_the_caller(wheels: Stage, checkout: Path) -> None:
    done = inside(checkout, "sh", "-c", "whoami && echo made > made-inside")
    assert done.stdout == "dev\n", done.stderr
    made = (checkout / "made-inside").stat()
    assert (made.st_uid, made.st_gid) == (CALLER, CALLER)


def test_the_image_cannot_be_written_to(wheels: Stage, checkout: Path) -> None:
    done = inside(checkout, "touch", "/opt/qnn-ci/mark")
    assert "Read-only file system" in done.stderr


def test_validate_runs_inside_for_a_caller_who_is_not_root(wheels: Stage, checkout: Path) -> None:
    done = inside(checkout, "nox", "-s", "validate")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_delegate_test_runs_on_the_emulator_inside(wheels: Stage, checkout: Path) -> None:
    one = "TestQNNFloatingPointOperator and test_qnn_backend_abs"
    done = inside(
        checkout, "sh", "-ec", f"nox -s build_runner && nox -s test_delegate -- --jobs 1 -k '{one}'"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_shell_image_is_the_shell_session(wheels: Stage) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ci", "shell", "--image", "wheels", "--", "sh", "-c", "id -u; exit 7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (f"{os.getuid()}\n", 7), done.stderr


@pytest.fixture
def stand_ins(wheels: Stage) -> Iterator[str]:
    """Folders in the place of the vendors' SDKs; relative to the context."""
    folder = "components/stand-ins"
    for name in STAGES:
        (CONTEXT / folder / name).mkdir(parents=True)
        (CONTEXT / folder / name / "source.properties").write_text(f"stands for {name}\n")
    yield folder
    shutil.rmtree(CONTEXT / folder)


def test_a_vendors_image_finds_its_sdks_by_their_variables(
    stand_ins: str, engine: Engine, tmp_path: Path
) -> None:
    tag = "qnn-ci/test-stand-ins:latest"
    order = Order(
        context=CONTEXT,
        stage=plan_of("qnn-2.48-ndk-r26c-hexagon").stage,
        base=BASE,
        base_id=str(engine.image_id(BASE)),
        tag=tag,
        epoch=plan_of("base").system.epoch,
        arguments={"COMPONENTS": stand_ins, "PROFILE": "qnn-2.48"},
        labels={},
        log=tmp_path / "build.log",
    )
    choose("auto").build(order, engine)
    roots = " ".join(f"${COMPONENT_VARIABLES[name]}/source.properties" for name in STAGES)
    shown = f"cat {roots}; echo $QNN_CI_PROFILE"
    done = engine.run(Job(tag, ["sh", "-c", shown]))
    assert done.stdout.splitlines() == [*(f"stands for {name}" for name in STAGES), "qnn-2.48"]


def test_an_image_built_twice_is_the_same(engine: Engine, tmp_path: Path) -> None:
    stage = image("base", "--check-reproducible", reports=tmp_path)
    assert stage.code == 0, stage.said
    first, second = stage.report["metrics"]["digests"]
    assert first == second


@pytest.fixture
def clockwork(engine: Engine, tmp_path: Path) -> Order:
    """An image that holds the moment of its making."""
    context = tmp_path / "context"
    (context / "docker").mkdir(parents=True)
    (context / "docker" / "Dockerfile").write_text(
        "ARG BASE\nFROM ${BASE} AS base\nRUN date +%s.%N > /etc/made && echo same > /etc/same\n"
    )
    base_id = str(engine.image_id(BASE))
    return Order(context, "base", BASE, base_id, "qnn-ci/clockwork:latest", 5, {}, {}, tmp_path / "build.log")


def test_what_differs_between_two_builds_is_named(clockwork: Order, engine: Engine, tmp_path: Path) -> None:
    comparison = build_twice(clockwork, engine, tmp_path / "twice")
    assert (comparison.same, comparison.differing) == (False, ("/etc/made: content",))


def test_a_full_disk_is_an_exit_code_3(clockwork: Order, engine: Engine, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    engine.save(clockwork.base_id, tmp_path / "base.tar")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", small], check=True)
    try:
        with pytest.raises(EnvironmentLacking, match="full") as caught:
            find_buildah(root=small / "storage").build_apart(clockwork, tmp_path / "base.tar")
        assert caught.value.exit_code == 3
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_user_whom_the_engine_does_not_know_may_not_use_it(engine: Engine) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(CALLER)
            os.setuid(CALLER)
            connect()
        except EnvironmentLacking as fault:
            code = 3 if "you may not use it" in fault.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_job_without_network_has_none(wheels: Stage, engine: Engine) -> None:
    done = engine.run(Job(plan_of("wheels").tag, ["ls", "/sys/class/net"]))
    assert done.stdout.split() == ["lo"]
