"""`build_runner`: build our runner, qnn_executor_runner, against an executorch package, in a folder that can
be moved.

A build is known by all that decides its bytes (`RunnerPlan.key`): dist/ or the cache may have it already. It
is started once before it replaces the last good one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ci.builds.built_files import (
    LoadableFile,
    alone_in,
    check,
    digests_below,
    part_of,
    refuse_foreign,
    replace_build,
    require_writable,
)
from ci.builds.cmake import RECORD, Build, BuildCommand, ConfiguredProject, execute
from ci.builds.toolchain import BuildTool, find_cmake, find_compiler, find_ninja, find_program
from ci.diagnose.logs import causes
from ci.work import NEW, CachedResult, CachedResults, Key, folder_digest
from provisioning import elf
from provisioning.base.commands import Fix, interview, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Metric, Severity
from provisioning.base.settings import (
    DEFAULT_PROFILE,
    DEFAULT_TARGET,
    ROOT,
    WHEEL,
    Selection,
    dist_path,
    outputs_path,
)
from provisioning.base.stage_run import StageRun
from provisioning.base.units import align
from provisioning.components import EXECUTORCH_RUNTIME, EXECUTORCH_SOURCE
from provisioning.dist import LIBRARIES, OURS, RUNNER
from provisioning.elf import highest_version
from provisioning.environment import executorch_of, users_own
from provisioning.executorch import BY_WORD

SOURCE = ROOT / "ci" / "builds" / "runner"
CONFIG = Path("share/cmake/executorch-config.cmake")
TARGETS = ("x86_64-linux", "aarch64-linux")
FOLDERS = (str(RUNNER.parent), str(LIBRARIES))
DEFAULT_TYPE = "Release"
KIND = "runner"
"""The kind under which the store keeps cached builds of the runner."""


@dataclass(frozen=True, slots=True)
class Executorch:
    """The package that is built against: the folder with include/, lib/ and share/cmake/."""

    root: Path
    version: str


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """Everything that decides the bytes of a build, and where they go."""

    target: str
    build_type: str
    executorch: Executorch
    compiler: BuildTool
    cmake: BuildTool
    ninja: BuildTool
    folder: Path
    dist: Path
    store: Path

    def definitions(self) -> dict[str, str]:
        defined = {
            "CMAKE_BUILD_TYPE": self.build_type,
            "executorch_DIR": str(self.executorch.root / CONFIG.parent),
        }
        if self.target == DEFAULT_TARGET:
            return {**defined, "CMAKE_CXX_COMPILER": str(self.compiler.path)}
        return {**defined, "CMAKE_TOOLCHAIN_FILE": str(SOURCE / "cmake" / f"{self.target}.cmake")}

    def cmake_build(self, jobs: int = 1) -> Build:
        project = ConfiguredProject(RUNNER.name, SOURCE, self.folder / "build", self.definitions())
        return Build(self.folder, self.cmake, self.ninja, (project,), jobs)

    @property
    def subject(self) -> str:
        return f"{self.target} {self.build_type}"

    def key(self, results: CachedResults) -> Key:
        """Return what decides the build: every file that it can read, by its bytes."""
        package, own = self.executorch.root, Path(__file__).parent
        return {
            "kept": list(FOLDERS),
            "target": self.target,
            "build type": self.build_type,
            "sources": folder_digest(SOURCE, ("",), results.digest),
            "own code": {name: results.digest(own / name) for name in OWN_CODE},
            "executorch": {
                "version": self.executorch.version,
                **{part: folder_digest(package / part, ("",), results.digest) for part in PACKAGE},
            },
            "tools": {
                name: {"identity": tool.identity, "file": results.digest(tool.path.resolve())}
                for name, tool in (("compiler", self.compiler), ("cmake", self.cmake), ("ninja", self.ninja))
            },
        }


OWN_CODE = ("cmake.py", "toolchain.py", "built_files.py", "runner_build.py")
PACKAGE = ("include", "lib", "share/cmake")
"""The folders of executorch's package that a build reads."""


def build_and_start(plan: RunnerPlan, stage: StageRun, glibc: str, *, jobs: int, clean: bool) -> None:
    """Build the runner, and start it if it is this machine's."""
    if build(plan, stage, glibc, jobs=jobs, clean=clean) and plan.target == DEFAULT_TARGET:
        stage.metrics["backends"] = _backends(plan.dist / RUNNER)


def runner_of_tree(selection: Selection, environ: Mapping[str, str], stage: StageRun) -> Path | None:
    """The runner that was built with the tree that stages run; None if they run a wheel. Raises
    EnvironmentLacking if a variable names another executorch."""
    if selection.target != DEFAULT_TARGET:
        _refuse_named_tree(selection, environ)
        return None
    executorch = executorch_of(selection, environ).current()
    if executorch.build is None:
        return None
    sys.stderr.write(f"executorch built of {executorch.build}\n")
    stage.metrics["tree"] = str(executorch.build)
    if executorch.overlay is None:
        return None
    runner = executorch.runner(dist_path() / selection.target)
    if not runner.is_file():
        raise EnvironmentLacking(f"{runner}, which build_x86 builds, is gone", fix=executorch.again)
    return runner


def _refuse_named_tree(selection: Selection, environ: Mapping[str, str]) -> None:
    named = users_own(EXECUTORCH_SOURCE, selection.store, environ, [])
    if named and selection.executorch != WHEEL:
        raise EnvironmentLacking(
            f"{'='.join(named)}, and the runner for {selection.target} would be built against the wheel",
            fix=Fix("{}, or {}", ("build_linux_arm64",), BY_WORD),
        )


def plan_of(
    selection: Selection,
    *,
    executorch: Path | None = None,
    build_type: str = DEFAULT_TYPE,
    build_dir: Path | None = None,
    output: Path | None = None,
) -> RunnerPlan:
    from provisioning.manifest import load_profile

    target = selection.target
    if target not in TARGETS:
        raise UsageError(
            f"--target: expected {' or '.join(TARGETS)}, found {target}",
            fix=Fix("{} builds the runner for Android from ExecuTorch's source", ("build_android",)),
        )
    if output:
        require_writable(output, "--output")
        refuse_foreign(output, str(RUNNER), "--output", FOLDERS)
    if build_dir:
        require_writable(build_dir, "--build-dir")
        refuse_foreign(build_dir, RECORD, "--build-dir")
    suffix = "" if build_type == DEFAULT_TYPE else f"-{build_type}"
    return RunnerPlan(
        target=target,
        build_type=build_type,
        executorch=find_executorch(executorch, selection),
        compiler=find_compiler() if target == DEFAULT_TARGET else find_program("aarch64-linux-gnu-g++"),
        cmake=find_cmake(load_profile(selection.profile).host["cmake"]),
        ninja=find_ninja(),
        folder=(build_dir or outputs_path() / "build" / "runner" / f"{target}{suffix}").absolute(),
        dist=(output or dist_path() / target / OURS).absolute(),
        store=selection.store,
    )


def find_executorch(folder: Path | None, selection: Selection) -> Executorch:
    """The package that --executorch names, else this Python's, or the store's wheel for another machine."""
    if folder is not None:
        for root in (folder, folder / "executorch"):
            if (root / CONFIG).is_file():
                return _package(root.absolute())
        raise EnvironmentLacking(
            f"--executorch {folder}: expected {CONFIG} in it, found none",
            fix="name an unpacked executorch wheel",
        )
    if selection.target == DEFAULT_TARGET:
        spec = importlib.util.find_spec("executorch")
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(place) / CONFIG).is_file():
                return _package(Path(place))
        raise EnvironmentLacking(
            f"{sys.executable} has no executorch package with {CONFIG}",
            fix=Fix(
                "{} uses an environment that has it; or name one with --executorch DIR", ("build_runner",)
            ),
        )
    return _provision_executorch(selection)


def _provision_executorch(selection: Selection) -> Executorch:
    from provisioning.manifest import load_profile
    from provisioning.store import Store

    profile = load_profile(selection.profile)
    pin = profile.components.get(EXECUTORCH_RUNTIME)
    if pin is None:
        raise EnvironmentLacking(
            f"the profile {profile.name} has no executorch wheel of {selection.target}",
            fix=Fix("{}, or name an unpacked wheel with --executorch DIR", ("--profile", DEFAULT_PROFILE)),
        )
    if tree := Store(selection.store).find(EXECUTORCH_RUNTIME, pin, {selection.target}):
        return _package(tree.root)
    raise EnvironmentLacking(
        f"the executorch wheel of {selection.target} is not in the store ({selection.store})",
        fix=session("provision", "--target", selection.target, "--component", EXECUTORCH_RUNTIME),
    )


def _package(root: Path) -> Executorch:
    file = (root / CONFIG).with_name("executorch-config-version.cmake")
    if not file.is_file():
        raise EnvironmentLacking(
            f"{root} is no release that the runner can be built against: it has no {file.name}",
            fix="take an executorch of 1.5 or later off PYTHONPATH, or name one with --executorch DIR",
        )
    text = file.read_text(encoding="utf-8")
    version = re.search(r'^set\(EXECUTORCH_BUILD_VERSION\s+"([^"]+)"', text, re.MULTILINE)
    return Executorch(root, version.group(1) if version else "unknown")


def describe_build(plan: RunnerPlan) -> str:
    results = CachedResults(plan.store, KIND)
    key = plan.key(results)
    if cached := results.find(key):
        state = "up to date" if _is_in_dist(plan, cached) else "cached, to be copied"
    else:
        state = f"to be built: {results.difference(plan.subject, key)}"
    lines = {
        "target": plan.target,
        "executorch": f"{plan.executorch.version} in {plan.executorch.root}",
        "compiler": f"{plan.compiler.path} ({plan.compiler.identity})",
        "cmake": f"{plan.cmake.path} ({plan.cmake.version})",
        "ninja": str(plan.ninja.path),
        "build tree": str(plan.folder),
        "put into": str(plan.dist),
        "state": state,
    }
    return "".join(f"{line}\n" for line in align(lines.items()))


def _is_in_dist(plan: RunnerPlan, cached: CachedResult) -> bool:
    return bool(digests_below(plan.dist, FOLDERS) == cached.facts["files"])


def _copy(plan: RunnerPlan, cached: CachedResult, stage: StageRun, glibc: str) -> dict[str, str]:
    """Put a cached build into dist/ if other files are there, and return its files with their digests."""
    assert cached.folder is not None
    files: dict[str, str] = cached.facts["files"]
    _check(plan, cached.folder, files, stage, glibc)
    if not _is_good(stage):
        return {}
    if not _is_in_dist(plan, cached):
        with part_of(plan.dist) as part:
            shutil.copytree(cached.folder, part)
            (part / RUNNER).chmod(0o755)  # caches of CI systems keep no modes
            replace_build(part, plan.dist)
    return files


def build(plan: RunnerPlan, stage: StageRun, glibc: str, *, jobs: int, clean: bool) -> bool:
    """Build the runner unless dist/ already has it; returns whether its files are good."""
    with alone_in(plan.folder, "build"), alone_in(plan.dist, "dist"):
        start = time.monotonic()
        results = CachedResults(plan.store, KIND)
        key = plan.key(results)
        cached = None if clean else results.find(key)
        stage.metrics["cached"] = cached is not None
        if cached is None:
            why = "--clean" if clean else results.difference(plan.subject, key)
            reason = ", which starts programs on the emulator" if why == NEW else f" again: {why}"
            sys.stderr.write(f"building the runner{reason}\n")
            files = _build_and_replace(plan, stage, results, glibc, jobs)
        else:
            files = _copy(plan, cached, stage, glibc)
        results.close()
        stage.artifacts += [
            Artifact(_kind(place), str(plan.dist / place), digest, (plan.dist / place).stat().st_size)
            for place, digest in files.items()
        ]
    stage.metrics |= {
        "build_seconds": round(time.monotonic() - start, 2),
        "executorch": plan.executorch.version,
        "compiler": plan.compiler.identity,
        "cmake": plan.cmake.version,
        "build_type": plan.build_type,
    }
    return _is_good(stage)


def _is_good(stage: StageRun) -> bool:
    return not any(finding.severity is Severity.ERROR for finding in stage.findings)


def _build_and_replace(
    plan: RunnerPlan, stage: StageRun, results: CachedResults, glibc: str, jobs: int
) -> dict[str, str]:
    """Put the build into dist/ and return its files with their digests.

    After an error the last good build stays, and nothing is returned. The build folder is emptied first:
    Ninja compares times, and a newly installed file may be older than an object."""
    cmake_build, key = plan.cmake_build(jobs), plan.key(results)
    cmake_build.run(clean=True)
    with part_of(plan.dist) as part:
        strip = ["--strip"] if plan.build_type == DEFAULT_TYPE else []
        tree = str(plan.folder / "build")
        argv = (str(plan.cmake.path), "--install", tree, "--prefix", str(part), *strip)
        execute(BuildCommand("installing the runner", argv), cmake_build.log, cmake_build.environ(os.environ))
        files = digests_below(part, FOLDERS)
        _check(plan, part, files, stage, glibc)
        if not _is_good(stage):
            return {}
        copy = results.scratch()
        shutil.copytree(part, copy, dirs_exist_ok=True)
        replace_build(part, plan.dist)
    if plan.key(results) != key:
        # Something was installed meanwhile: nobody knows which of the two was built.
        sys.stderr.write("the next build starts from the beginning: its files changed while it was built\n")
        shutil.rmtree(copy)
        return files
    results.keep(plan.subject, key, {"files": files}, copy)
    return files


def _check(plan: RunnerPlan, folder: Path, places: Iterable[str], stage: StageRun, glibc: str) -> None:
    private = (ROOT, plan.folder, plan.executorch.root, Path.home())
    files = [LoadableFile(_kind(place), folder / place, place) for place in places]
    stage.findings += check(files, plan.target, glibc, private)
    runner = elf.read(folder / RUNNER)
    versions = [version for file in files for _, version in elf.read(file.path).versions]
    stage.metrics |= {
        "machine": runner.machine_name,
        "interpreter": runner.interpreter,
        "needed": list(runner.needed),
        "glibc": highest_version(versions, "GLIBC") or "0",
    }


def _kind(place: str) -> Literal["runner", "library"]:
    return "runner" if place == str(RUNNER) else "library"


def _backends(runner: Path) -> list[Metric]:
    """The backends that the runner lists."""
    result = interview([str(runner), "--version"], 120)
    backends = re.search(r"^backends:(.*)$", result.stdout, re.MULTILINE)
    if result.returncode != 0 or backends is None:
        raise CheckFailed(
            f"{runner} --version failed with exit code {result.returncode}:\n"
            f"  {result.stderr.strip()[-400:]}{causes(result.stderr)}",
            fix="run it by hand; --clean builds it again",
        )
    return [*backends.group(1).split()]
