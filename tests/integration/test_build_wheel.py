"""`build_x86 --wheel` of a tree whose setup.py writes a wheel of a few files, with a real uv and compiler."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import wheel
from ci.builds.built_files import refuse_foreign
from ci.builds.cmake import RECORD
from ci.builds.source_plan import SourcePlan
from ci.builds.toolchain import Toolchain
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Report
from provisioning.base.stage_run import StageRun
from provisioning.python_environments import IN_IMAGE, PythonEnvironments
from tests.support.build_plans import COMMIT, make_plan
from tests.support.scripts import script
from tests.support.wheels import make_wheel

OLD = "executorch-0.9-py3-none-any.whl"
ADAPTOR = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "PyQnnManagerAdaptor", 0, -1, 0};
PyMODINIT_FUNC PyInit_PyQnnManagerAdaptor(void) { return PyModule_Create(&module); }
"""
SETUP = """
import os, pathlib, subprocess, sys, sysconfig, zipfile
here = pathlib.Path.cwd()
(here / "written.txt").write_text("by setup.py")
files = {name: (here / name).read_text() for name in os.environ.get("FILES", "").split()}
version = os.environ["BUILD_VERSION"]
place = "executorch/backends/qualcomm/python/PyQnnManagerAdaptor.so"
include = sysconfig.get_path("include")
command = ["cc", "-shared", "-fPIC", f"-I{include}", "adaptor.c", "-o", "adaptor.so"]
subprocess.run(command, check=True)
arguments = os.environ["CMAKE_ARGS"]
info = f"executorch-{version}.dist-info"
output = pathlib.Path(sys.argv[sys.argv.index("--dist-dir") + 1])
output.mkdir(parents=True)
with zipfile.ZipFile(output / f"executorch-{version}-py3-none-any.whl", "w") as wheel:
    wheel.write("adaptor.so", place)
    if "EXECUTORCH_BUILD_SHARED=ON" in arguments and os.environ["QNN_SDK_ROOT"]:
        wheel.writestr("executorch/lib/libexecutorch_backend_qnn.so", "")
    # As setup.py does where nvcc or glslc is on PATH.
    for name in ("cuda", "vulkan"):
        if f"EXECUTORCH_BUILD_{name.upper()}=OFF" not in arguments:
            wheel.writestr(f"executorch/lib/libexecutorch_backend_{name}.so", "")
    for name in pathlib.Path("more.txt").read_text().split():
        wheel.writestr(name, "")
    wheel.writestr("executorch/__init__.py", "")
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: executorch\\nVersion: {version}\\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(f"{info}/RECORD", "")
"""


@pytest.fixture
def plan(tmp_path: Path) -> SourcePlan:
    plan = make_plan(tmp_path, "x86_64-linux", toolchain=Toolchain("cc", {"CMAKE_C_COMPILER": "cc"}))
    tree = plan.tree.root
    tree.mkdir(parents=True)
    (tree / "pyproject.toml").write_text('[build-system]\nrequires = ["mine"]\n')
    (tree / "setup.py").write_text(SETUP)
    (tree / "adaptor.c").write_text(ADAPTOR)
    (tree / "more.txt").write_text("")
    return plan


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PythonEnvironments:
    """A lock file with an older executorch, and no index."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    links = tmp_path / "links"
    for folder in (links, tmp_path / "locks", tmp_path / "torch"):
        folder.mkdir()
    (links / "mine-1.0-py3-none-any.whl").write_bytes(make_wheel("mine-1.0-py3-none-any.whl"))
    (links / OLD).write_bytes(content := make_wheel(OLD))
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "locks" / "executorch.txt").write_text(f"executorch==0.9 \\\n    --hash=sha256:{digest}\n")
    settings = {"UV_NO_CACHE": "1", "PIP_NO_INDEX": "1", "UV_FIND_LINKS": str(links)}
    settings |= {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return PythonEnvironments(tmp_path / "made", lambda line: None, tmp_path / "torch", tmp_path / "locks")


def build(plan: SourcePlan, environments: PythonEnvironments) -> Report:
    stage = StageRun("build_x86", "qnn-2.37", "x86_64-linux", "build_x86 --wheel")
    wheel.build(plan, stage, environments)
    return stage.finish()


def test_the_wheel_has_the_backend_and_stages_use_the_environment_that_has_it(
    plan: SourcePlan,
    environments: PythonEnvironments,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = build(plan, environments)
    (file,) = (plan.dist / "wheels").glob("*.whl")
    assert file.name == f"executorch-1.5.1+{COMMIT[:7]}-py3-none-any.whl"
    libraries = [name for name in zipfile.ZipFile(file).namelist() if name.startswith("executorch/lib/")]
    assert libraries == ["executorch/lib/libexecutorch_backend_qnn.so"], "not what PATH happens to have"
    assert [artifact.kind for artifact in report.artifacts] == ["wheel"]
    # The user's tree is only read.
    assert not (plan.tree.root / "written.txt").exists()

    assert f"export {IN_IMAGE}={plan.dist / 'environments'}\n" in capsys.readouterr().out
    monkeypatch.setenv(IN_IMAGE, str(plan.dist / "environments"))
    python = environments.current_python("executorch")
    code = "import importlib.metadata as m; print(m.version('executorch'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=plan.dist)
    assert done.stdout.strip() == f"1.5.1+{COMMIT[:7]}"


def test_a_build_that_failed_can_be_repeated_in_its_folder(
    plan: SourcePlan, environments: PythonEnvironments
) -> None:
    (plan.tree.root / "adaptor.c").write_text("#error half of it")
    with pytest.raises(CheckFailed):
        build(plan, environments)
    assert (plan.root / "builder").is_dir()
    refuse_foreign(plan.root, RECORD, "--build-dir")
    (plan.tree.root / "adaptor.c").write_text(ADAPTOR)
    assert build(plan, environments).artifacts


@pytest.mark.parametrize("more", ["executorch/backends/qualcomm/sdk/libQnnHtp.so"])
def test_a_wheel_with_qualcomms_libraries_is_refused(
    plan: SourcePlan, environments: PythonEnvironments, more: str
) -> None:
    (plan.tree.root / "more.txt").write_text(more)
    with pytest.raises(CheckFailed, match="Qualcomm's SDK"):
        build(plan, environments)
    assert not (plan.dist / "environments").exists()


def test_a_tree_that_builds_no_wheel_is_named_before_anything_is_made(
    plan: SourcePlan, environments: PythonEnvironments
) -> None:
    (plan.tree.root / "setup.py").unlink()
    with pytest.raises(EnvironmentLacking, match="has no setup"):
        build(plan, environments)
    assert not plan.root.exists() or not any(plan.root.iterdir())


def test_an_adaptor_that_cannot_be_imported_is_the_error(
    plan: SourcePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "_build_wheel", lambda *_: script(tmp_path / "executorch.whl", ""))
    monkeypatch.setattr(wheel, "find_mistakes", lambda _: ())
    python = script(tmp_path / "python", "echo 'ImportError: undefined symbol' >&2; exit 1")
    plan.dist.mkdir(parents=True, exist_ok=True)
    environments: Any = SimpleNamespace(extended=lambda *_: python)
    with pytest.raises(CheckFailed, match=r"cannot be imported.*undefined symbol"):
        build(plan, environments)
