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
from filelock import FileLock

from ci.image.contents import CONTEXT, keep_wheels, plan_of
from ci.image.engine import Engine, connect_engine
from ci.image.shell import docker_run
from lab.lint import tracked_files
from lab.release.files import bill_of_image
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import ROOT
from provisioning.components import COMPONENT_VARIABLES
from tests.support.bills import faults
from tests.support.engine import make_base, running
from tests.support.sdk_archives import sdk_zip, served_here, write_zip
from tests.support.typed import typed

pytestmark = [pytest.mark.engine, pytest.mark.heavy, pytest.mark.timeout(1200)]

BASE = "qnn-ci-test-base:bookworm"
CALLER = 4321
"""Neither root nor the user that images know."""


@dataclass
class Stage:
    code: int
    printed: str
    report: dict[str, Any]


def image(root: Path, *arguments: str, reports: Path, **environ: str) -> Stage:
    done = typed(
        "image", *arguments, "--base", BASE, "--reports", reports, cwd=root, env={**os.environ, **environ}
    )
    path = reports / "image.json"
    return Stage(done.returncode, done.stdout + done.stderr, json.loads(path.read_text()))


@pytest.fixture(scope="module")
def daemon() -> Iterator[Path]:
    with running() as folder:
        yield folder


@pytest.fixture(scope="module")
def engine(daemon: Path) -> Iterator[Engine]:
    """With the base."""
    make_base(daemon, BASE)
    with connect_engine() as engine:
        yield engine


def copy_of_the_checkout(root: Path) -> Path:
    for path in tracked_files(ROOT):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (root / "build").mkdir()
    return root


def context_of(root: Path) -> Path:
    return root / CONTEXT.relative_to(ROOT)


@pytest.fixture(scope="module")
def root(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout that pins the Debian packages of today, as Debian does not keep those of yesterday."""
    copy = copy_of_the_checkout(tmp_path_factory.mktemp("root") / "checkout")
    plan = plan_of("wheels")
    CONTEXT.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{CONTEXT}.lock"):
        # Here, and not in the copy, so that they need not be fetched for every run.
        for environment in plan.environments:
            folder = CONTEXT / "environments" / environment
            keep_wheels(plan, environment, folder)
            shutil.copytree(folder, context_of(copy) / "environments" / environment, copy_function=os.link)
    subprocess.run([sys.executable, "-m", "lab", "image_pins", "--base", BASE], cwd=copy, check=True)
    yield copy
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def wheels(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    subprocess.run([sys.executable, "-m", "provisioning", "provision"], cwd=root, check=True)
    return image(root, "wheels", reports=tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository's files, belonging to the caller."""
    copy = copy_of_the_checkout(tmp_path_factory.mktemp("caller") / "checkout")
    for folder, names, files in os.walk(copy):
        for name in (".", *names, *files):
            os.chown(Path(folder) / name, CALLER, CALLER)
    return copy


@pytest.fixture
def elsewhere(wheels: Stage, root: Path, tmp_path: Path) -> Path:
    """Another checkout, by which images can be built at once: its context has what the first has."""
    copy = tmp_path / "elsewhere"
    outputs = {"build", "dist", "reports"}
    shutil.copytree(root, copy, ignore=lambda folder, _: outputs if folder == str(root) else set())
    shutil.copytree(context_of(root), context_of(copy), copy_function=os.link)
    return copy


def inside(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """As `shell --image wheels` runs it for the caller."""
    argv = docker_run(
        plan_of("wheels"),
        command,
        owner=f"{CALLER}:{CALLER}",
        terminal=False,
        environ={},
        cwd=checkout,
        root=checkout,
    )
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.whole
def test_the_wheels_image_validates_inside_and_its_bill_names_what_is_inside(
    wheels: Stage, engine: Engine
) -> None:
    assert (wheels.code, wheels.report["metrics"]["validate"]["outcome"]) == (0, "pass"), wheels.printed
    bill = bill_of_image(plan_of("wheels"), engine)
    assert {"g++", "executorch", "torch"} <= {part["name"] for part in json.loads(bill)["components"]}
    assert faults(bill) == ""


@pytest.mark.whole
def test_a_caller_who_is_not_root_owns_what_is_written_and_validates_in_a_read_only_image(
    wheels: Stage, checkout: Path
) -> None:
    done = inside(checkout, "sh", "-c", "echo one > written-inside && touch /opt/qnn-ci/mark")
    assert "Read-only file system" in done.stderr
    written = (checkout / "written-inside").stat()
    assert (written.st_uid, written.st_gid) == (CALLER, CALLER)
    validated = inside(checkout, "nox", "-s", "validate")
    assert validated.returncode == 0, validated.stdout + validated.stderr


@pytest.mark.whole
def test_a_delegate_test_runs_on_the_emulator_inside(wheels: Stage, checkout: Path) -> None:
    words = "TestQNNFloatingPointOperator and test_qnn_backend_abs"
    done = inside(
        checkout, "sh", "-ec", f"nox -s build_runner && nox -s test_delegate -- --jobs 1 -k '{words}'"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.whole
def test_shell_image_is_the_shell_session_and_a_job_has_no_network(
    wheels: Stage, root: Path, engine: Engine
) -> None:
    done = typed("shell", "--image", "wheels", "--", "sh", "-c", "id -u; exit 7", cwd=root)
    assert (done.stdout, done.returncode) == (f"{os.getuid()}\n", 7), done.stderr
    interfaces = engine.run(plan_of("wheels").tag, ["ls", "/sys/class/net"])
    assert interfaces.stdout.split() == ["lo"]


@pytest.fixture
def vendors(elsewhere: Path, tmp_path: Path) -> Iterator[Path]:
    """A checkout whose profile qnn-2.37 names stand-ins for the vendors' archives, served on this machine."""
    revision = b"Pkg.Desc = Android NDK\nPkg.Revision = 26.2.11394342\n"
    sdk = sdk_zip(tmp_path / "sdk.zip").read_bytes()
    ndk = write_zip(
        tmp_path / "ndk.zip", {"source.properties": revision}, prefix="android-ndk-r26c/"
    ).read_bytes()
    archives = {"/v2.37.0.250724.zip": sdk, "/android-ndk-r26c-linux.zip": ndk}
    with served_here(elsewhere / "manifests" / "profiles" / "qnn-2.37.toml", archives):
        yield elsewhere


VENDORS = "qnn-2.37-ndk-r26c"


@pytest.mark.whole
def test_vendors_sdks_are_put_in_after_their_licences_were_accepted_and_never_otherwise(
    vendors: Path, wheels: Stage, engine: Engine, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    refused = image(vendors, VENDORS, reports=tmp_path / "refused", QNN_CI_STORE=store)
    assert (refused.code, "was not accepted" in refused.printed) == (3, True), refused.printed
    command = [sys.executable, "-m", "provisioning", "provision", "--profile", "qnn-2.37", "--store", store]
    accepted = [word for name in ("qualcomm-ai-stack", "android-sdk") for word in ("--accept-licence", name)]
    subprocess.run([*command, *accepted, "--reports", str(tmp_path)], cwd=vendors, check=True)
    built = image(vendors, VENDORS, reports=tmp_path / "built", QNN_CI_STORE=store)
    # What stands for the SDK's libraries has nothing in it, and validate inside sees that.
    assert (built.code, built.report["metrics"]["validate"]["outcome"]) == (1, "fail"), built.printed
    findings = {(finding["rule"], finding["subject"]) for finding in built.report["findings"]}
    assert ("hexagon-arch", "lib/hexagon-v73/unsigned/libQnnHtpV73Skel.so") in findings, built.printed

    plan = plan_of(VENDORS)
    attributes = engine.attributes(plan.tag)
    assert "Qualcomm AI Stack License" in attributes["Config"]["Labels"]["qnn-ci.not-to-be-published"]
    roots = " ".join(f"${COMPONENT_VARIABLES[name]}" for name in plan.components)
    listed = engine.run(plan.tag, ["sh", "-c", f"ls -d {roots}; echo $QNN_CI_PROFILE"])
    assert listed.stdout.split() == ["/opt/qnn-ci/android-ndk", "/opt/qnn-ci/qnn-sdk", "qnn-2.37"]

    # Each SDK is a layer of its own, upon those that `wheels` has below its own SDK.
    shared = wheels.report["metrics"]["layers"][:-1]
    assert built.report["metrics"]["layers"][: len(shared)] == shared
    assert len(built.report["metrics"]["layers"]) == len(shared) + len(plan.components)


@pytest.mark.whole
def test_an_image_built_twice_is_the_same(root: Path, tmp_path: Path) -> None:
    stage = image(root, "base", "--check-reproducible", reports=tmp_path)
    assert stage.code == 0, stage.printed
    first, second = stage.report["metrics"]["layers"]
    assert first == second


def test_a_user_whom_the_engine_does_not_know_may_not_use_it(daemon: Path) -> None:
    # What this imports lies where that user may not be allowed to read.
    with connect_engine():
        pass
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(CALLER)
            os.setuid(CALLER)
            with connect_engine():
                pass
        except EnvironmentLacking as fault:
            code = 3 if "you may not use it" in fault.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
