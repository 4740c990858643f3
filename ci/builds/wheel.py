"""`build_x86 --wheel`: the wheel of a tree with its QNN backend, and an environment that has it."""

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
"""ExecuTorch's setup.py chooses what is not set here by what it finds on PATH, except the second option,
which its preset for Python turns on."""
NEEDED = {
    "the backend for C++ programs": r"executorch/lib/libexecutorch_backend_qnn\.so",
    "the adaptor that compiles": r"executorch/backends/qualcomm/python/PyQnnManagerAdaptor[^/]*\.so",
}
VENDORS = "executorch/backends/qualcomm/sdk/"
"""A wheel must not hold Qualcomm's libraries."""
SMOKE = "import executorch.backends.qualcomm.python.PyQnnManagerAdaptor"


def build(plan: SourcePlan, stage: StageRun, environments: PythonEnvironments) -> None:
    """Build the wheel of a copy of the tree, check it, and make an environment that has it."""
    with alone_in(plan.root, "wheel"), alone_in(plan.dist, "dist"):
        wheel = _build_wheel(plan, environments)
        lacking = list(lacks(wheel))
        if lacking:
            raise CheckFailed("\n".join(lacking), fix=f"read {_log(plan)}")
        stage.artifacts.append(Artifact.of("wheel", wheel))
        home = plan.dist / ENVIRONMENTS / NAME
        python = environments.extended(NAME, home, [str(wheel)])
        describe(home, BuiltFrom(plan.tree.root, stage.profile, plan.tree.state))
        run = capture([python, "-c", SMOKE], env={**os.environ, **_variables(plan, python)}, cwd=plan.dist)
        if run.returncode:
            reason = (run.stderr.strip().splitlines() or ["it was killed"])[-1]
            raise CheckFailed(
                f"{wheel.name} was built, and its adaptor cannot be imported in {home}: {reason}",
                fix="build a tree whose torch is the one of manifests/locks/executorch.txt",
            )
    stage.metrics["wheel"] = wheel.name
    sys.stdout.write(f"export {IN_IMAGE}={quote_command(home.parent)}\n")
    sys.stdout.write(f"next: {session('build_runner')}, then {session('test_emulator')}\n")


def script(plan: SourcePlan) -> str:
    """The command that a build runs, in a copy of the tree."""
    exported = [f"export {name}={quote_command(value)}" for name, value in _options(plan).items()]
    requirements = f"# Its Python has torch, and what {plan.tree.root}/pyproject.toml asks for."
    command = f"python setup.py bdist_wheel --dist-dir {quote_command(plan.dist / WHEELS)}"
    return "\n".join([f"# In a copy of {plan.tree.root}.", requirements, *exported, command, ""])


def lacks(wheel: Path) -> Iterator[str]:
    """Say why a wheel cannot be used for QNN, or not be passed on."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for part, pattern in NEEDED.items():
        if not any(re.fullmatch(pattern, name) for name in names):
            yield f"{wheel.name}: it has no {pattern}, {part}"
    if vendors := [name for name in names if name.startswith(VENDORS)]:
        yield f"{wheel.name}: it holds {vendors[0]} of Qualcomm's SDK"


def _build_wheel(plan: SourcePlan, environments: PythonEnvironments) -> Path:
    """ExecuTorch's setup.py writes into its tree, so it gets a copy."""
    place, folder = plan.root / WHEELS / NAME, plan.dist / WHEELS
    setup = plan.tree.root / "setup.py"
    if not setup.is_file():
        raise EnvironmentLacking(
            f"{plan.tree.root} has no setup.py that builds a wheel",
            fix="name ExecuTorch's tree with EXECUTORCH_ROOT",
        )
    mark = plan.root / RECORD
    if not mark.is_file():
        # The next build knows the folder as a build's by it, also where this one is killed.
        mark.parent.mkdir(parents=True, exist_ok=True)
        replace_text(mark, "{}\n")
    python = environments.extended(NAME, plan.root / "builder", _requirements(plan.tree.root))
    shutil.rmtree(place, ignore_errors=True)
    outputs = {str(plan.tree.root / name) for name in (".git", "pip-out", "cmake-out")}
    shutil.copytree(
        plan.tree.root,
        place,
        symlinks=True,
        ignore=lambda inside, names: [name for name in names if str(Path(inside, name)) in outputs],
    )
    shutil.rmtree(folder, ignore_errors=True)
    argv = ("env", "-C", str(place), python, "setup.py", "bdist_wheel", "--dist-dir", str(folder))
    environ = {**plan.cmake_build().environ(os.environ), **_variables(plan, python)}
    execute(BuildCommand("building the wheel", argv), _log(plan), environ, jobs=plan.jobs)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise CheckFailed(
            f"{folder}: expected one wheel of setup.py, found {len(wheels)}", fix=f"read {_log(plan)}"
        )
    return wheels[0]


def _requirements(tree: Path) -> Sequence[str]:
    """Return what the tree itself asks for to be built."""
    project = toml.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    requirements: Sequence[str] = project["build-system"]["requires"]
    return requirements


def _log(plan: SourcePlan) -> Path:
    return plan.root / "wheel.log"


def _variables(plan: SourcePlan, python: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(Path(python).parent), os.environ.get("PATH")]))
    return {**_options(plan), "PATH": path}


def _options(plan: SourcePlan) -> dict[str, str]:
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
