"""`build_x86 --wheel`: build the wheel of an ExecuTorch tree with its QNN backend, and an environment that
has it.

The tree is copied first, because its setup.py writes into its own. `find_mistakes` says why a wheel cannot be
used."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.builds.built_files import alone_in
from ci.builds.cmake import RECORD, BuildCommand, execute
from ci.builds.source_plan import SourcePlan
from provisioning.base import toml
from provisioning.base.commands import capture, quote_command, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact
from provisioning.base.stage_run import StageRun
from provisioning.dist import BuiltFrom, describe
from provisioning.python_environments import IN_IMAGE, PythonEnvironments

NAME = "executorch"
"""The name of the package, and of the environment whose lock file has it."""
WHEELS = "wheels"
ENVIRONMENTS = "environments"
"""The folders of wheels and of environments below dist/<target>/."""
OPTIONS = {
    "EXECUTORCH_BUILD_QNN": "ON",
    "EXECUTORCH_BUILD_SHARED": "ON",
    "EXECUTORCH_BUILD_CUDA": "OFF",
    "EXECUTORCH_BUILD_VULKAN": "OFF",
}
"""ExecuTorch's setup.py turns CUDA and Vulkan on where it finds them on PATH, unless they are set here. Its
preset for Python turns on shared libraries."""
NEEDED = {
    "the backend for C++ programs": r"executorch/lib/libexecutorch_backend_qnn\.so",
    "the adaptor that compiles": r"executorch/backends/qualcomm/python/PyQnnManagerAdaptor[^/]*\.so",
}
"""A wheel must hold a file of each of these patterns."""
VENDORS = "executorch/backends/qualcomm/sdk/"
"""A wheel must hold nothing in this folder, which has Qualcomm's libraries."""
BUILT_BEFORE = (".git", "pip-out", "cmake-out")
"""These folders of a tree are of no use to a build, and large."""
SMOKE_TEST = "import executorch.backends.qualcomm.python.PyQnnManagerAdaptor"


def build(plan: SourcePlan, stage: StageRun, environments: PythonEnvironments) -> None:
    """Build the wheel of a copy of the tree, check it, and make an environment that has it."""
    with alone_in(plan.root, "wheel"), alone_in(plan.dist, "dist"):
        wheel = _build_wheel(plan, environments)
        if mistakes := list(find_mistakes(wheel)):
            raise CheckFailed("\n".join(mistakes), fix=f"read {_log(plan)}")
        stage.artifacts.append(Artifact.of("wheel", wheel))
        home = plan.dist / ENVIRONMENTS / NAME
        python = environments.extended(NAME, home, [str(wheel)])
        describe(home, BuiltFrom(plan.tree.root, stage.profile, plan.tree.state))
        _require_adaptor(plan, wheel, home, python)
    stage.metrics["wheel"] = wheel.name
    sys.stdout.write(f"export {IN_IMAGE}={quote_command(home.parent)}\n")
    sys.stdout.write(f"next: {session('build_runner')}, then {session('test_emulator')}\n")


def script(plan: SourcePlan) -> str:
    """Return the commands that `build` runs, for a copy of the tree that the user makes."""
    lines = [
        f"# In a copy of {plan.tree.root}.",
        f"# Its Python has torch, and what {plan.tree.root}/pyproject.toml asks for.",
        *(f"export {name}={quote_command(value)}" for name, value in _options(plan).items()),
        f"python setup.py bdist_wheel --dist-dir {quote_command(plan.dist / WHEELS)}",
        "",
    ]
    return "\n".join(lines)


def find_mistakes(wheel: Path) -> Iterator[str]:
    """Say why a wheel cannot be used for QNN, or must not be passed on."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for part, pattern in NEEDED.items():
        if not any(re.fullmatch(pattern, name) for name in names):
            yield f"{wheel.name}: it has no {pattern}, {part}"
    if vendors_files := [name for name in names if name.startswith(VENDORS)]:
        yield f"{wheel.name}: it holds {vendors_files[0]} of Qualcomm's SDK"


def _require_adaptor(plan: SourcePlan, wheel: Path, home: Path, python: str) -> None:
    """Raise CheckFailed if the environment's Python cannot import the adaptor that compiles."""
    run = capture([python, "-c", SMOKE_TEST], env={**os.environ, **_variables(plan, python)}, cwd=plan.dist)
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise CheckFailed(
            f"{wheel.name} was built, and its adaptor cannot be imported in {home}: {reason}",
            fix="build a tree whose torch is the one of manifests/locks/executorch.txt",
        )


def _build_wheel(plan: SourcePlan, environments: PythonEnvironments) -> Path:
    if not (plan.tree.root / "setup.py").is_file():
        raise EnvironmentLacking(
            f"{plan.tree.root} has no setup.py that builds a wheel",
            fix="name ExecuTorch's tree with EXECUTORCH_ROOT",
        )
    _mark_folder(plan.root)
    python = environments.extended(NAME, plan.root / "builder", _requirements(plan.tree.root))
    copy, wheels = plan.root / WHEELS / NAME, plan.dist / WHEELS
    _copy_tree(plan.tree.root, copy)
    shutil.rmtree(wheels, ignore_errors=True)
    words = ("env", "-C", str(copy), python, "setup.py", "bdist_wheel", "--dist-dir", str(wheels))
    environ = {**plan.cmake_build().environ(os.environ), **_variables(plan, python)}
    execute(BuildCommand("building the wheel", words), _log(plan), environ, jobs=plan.jobs)
    built = list(wheels.glob("*.whl"))
    if len(built) != 1:
        raise CheckFailed(
            f"{wheels}: expected one wheel of setup.py, found {len(built)}", fix=f"read {_log(plan)}"
        )
    return built[0]


def _mark_folder(folder: Path) -> None:
    """Mark a folder as a build's: the next build knows it by that, also where this one is killed."""
    record = folder / RECORD
    if not record.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(record, "{}\n")


def _copy_tree(tree: Path, copy: Path) -> None:
    """Copy a source tree, since ExecuTorch's setup.py writes into its own."""
    left_out = {str(tree / name) for name in BUILT_BEFORE}

    def ignore(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if str(Path(folder, name)) in left_out]

    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(tree, copy, symlinks=True, ignore=ignore)


def _requirements(tree: Path) -> Sequence[str]:
    """Return the packages that the tree itself asks for to be built."""
    project = toml.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    requirements: Sequence[str] = project["build-system"]["requires"]
    return requirements


def _log(plan: SourcePlan) -> Path:
    return plan.root / "wheel.log"


def _variables(plan: SourcePlan, python: str) -> dict[str, str]:
    """Return the variables of a process that builds or uses the wheel with this Python."""
    folders = [str(Path(python).parent), os.environ.get("PATH", "")]
    return {**_options(plan), "PATH": os.pathsep.join(filter(None, folders))}


def _options(plan: SourcePlan) -> dict[str, str]:
    """Return the variables that setup.py reads."""
    definitions = {**OPTIONS, **plan.toolchain.definitions, "CMAKE_BUILD_TYPE": plan.build_type}
    arguments = [f"-D{name}={value}" for name, value in definitions.items()]
    arguments += [text if text.startswith("-") else f"-D{text}" for text in plan.extra]
    return {
        "EXECUTORCH_BUILDING_WHEEL": "1",
        "BUILD_VERSION": "+".join(filter(None, [plan.tree.version, plan.tree.commit[:7]])),
        "CMAKE_ARGS": shlex.join(arguments),
        "QNN_SDK_ROOT": str(plan.sdk.root),
        # The wheel has none of Qualcomm's libraries; what runs while it is built loads them.
        "LD_LIBRARY_PATH": str(plan.sdk.root / "lib" / "x86_64-linux-clang"),
    }
