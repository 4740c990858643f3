"""`build_runner`: qnn_executor_runner against an executorch wheel, staged so that it can be moved."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ci.builds.cmake import Build, Program, find_cmake, find_compiler, find_ninja, find_program
from ci.builds.loadable import Built, check
from ci.builds.output_folders import alone_in, refuse_foreign
from ci.builds.qemu_check import compare, probe_in, sysroot_of
from ci.engine.dist import LIBRARIES, MANIFEST, RUNNER
from provisioning import elf
from provisioning.base.command_line import count
from provisioning.base.commands import session, typed
from provisioning.base.diagnosis import causes
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.findings import Artifact, Metric, StageRun
from provisioning.base.settings import (
    DEFAULT_PROFILE,
    DEFAULT_TARGET,
    ROOT,
    Selection,
    add_selection,
    selection_of,
)

EXAMPLES = """\
  python -m ci build_runner
  python -m ci build_runner --target aarch64-linux
  python -m ci build_runner --target aarch64-linux --glibc 2.35
  python -m ci build_runner --build-type RelWithDebInfo -o dist/debug
  python -m ci build_runner --executorch DIR --dry-run
"""

SOURCE = ROOT / "ci" / "builds" / "runner"
CONFIG = Path("share/cmake/executorch-config.cmake")
STAGED = (str(RUNNER.parent), str(LIBRARIES))
TARGETS = ("x86_64-linux", "aarch64-linux")
LOG = "build.log"
STAMP = "staged.json"
BUILD_TYPES = ("Release", "RelWithDebInfo", "Debug")
FORMAT = 1
"""Part of every build key: a new value rebuilds everything."""


@dataclass(frozen=True, slots=True)
class Executorch:
    """The package that is built against: the folder with include/, lib/ and share/cmake/."""

    root: Path
    version: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the bytes of a build, and where they go."""

    target: str
    build_type: str
    executorch: Executorch
    compiler: Program
    cmake: Program
    ninja: Program
    remap: tuple[str, ...]
    tree: Path
    dist: Path

    @property
    def log(self) -> Path:
        return self.tree / LOG

    def definitions(self) -> dict[str, str]:
        defined = {
            "CMAKE_BUILD_TYPE": self.build_type,
            "CMAKE_PREFIX_PATH": str(self.executorch.root / CONFIG.parent),
            "RUNNER_REMAP": ";".join(self.remap),
        }
        if self.target == DEFAULT_TARGET:
            return {**defined, "CMAKE_CXX_COMPILER": str(self.compiler.path)}
        return {**defined, "CMAKE_TOOLCHAIN_FILE": str(SOURCE / "cmake" / f"{self.target}.cmake")}

    def inputs(self) -> str:
        """Everything but the sources that decides the bytes."""
        package = self.executorch
        values = {
            "format": FORMAT,
            "executorch": [package.version, str(package.root), _digest(_package_files(package.root))],
            "compiler": [self.compiler.identity, str(self.compiler.path)],
            "cmake": self.cmake.identity,
            "target": self.target,
            "build_type": self.build_type,
            "remap": self.remap,
        }
        return _hashed(values)

    def key(self) -> str:
        sources = (path for path in SOURCE.rglob("*") if "fuzz" not in path.parts)
        return _hashed([self.inputs(), _digest(sources)])


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--jobs", "-j", type=count, help="compile this many files at once [all cores]")
    parser.add_argument("--clean", action="store_true", help="build anew, whatever is there")
    parser.add_argument(
        "--build-type", choices=BUILD_TYPES, default=BUILD_TYPES[0], help="[%(default)s]; Release is stripped"
    )
    parser.add_argument(
        "--output", "-o", type=Path, metavar="DIR", help="where bin/ and lib/ are staged [dist/TARGET]"
    )
    parser.add_argument(
        "--build-dir", type=Path, metavar="DIR", help="where it is compiled [build/runner/TARGET]"
    )
    parser.add_argument(
        "--executorch",
        type=Path,
        metavar="DIR",
        help="the executorch package to build against [this Python's; for aarch64-linux the store's]",
    )
    parser.add_argument(
        "--remap",
        action="append",
        default=[],
        metavar="FROM=TO",
        help="write this path prefix as another in the binary; may be repeated",
    )
    parser.add_argument(
        "--glibc", metavar="VERSION", help="the newest glibc that it may need [the profile's floor]"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and do nothing")


def run(args: argparse.Namespace) -> int:
    from provisioning.manifest import load_profile

    selection = selection_of(args)
    command = typed("nox -s build_runner --", sys.argv[2:])
    stage = StageRun("build_runner", selection.profile, selection.target, command)
    with stage.reported(selection.reports, "runner-build", selection.target):
        plan = _plan(args, selection)
        if args.dry_run:
            sys.stdout.write(_described(plan))
            return 0
        native = plan.target == DEFAULT_TARGET
        qemu = None if native else find_program("qemu-aarch64")
        _make(plan, stage, jobs=args.jobs or os.cpu_count() or 1, clean=args.clean)
        _inspect(plan, args.glibc or load_profile(selection.profile).host["glibc"].floor, stage)
        if qemu is None:
            stage.metrics["backends"] = _backends(plan.dist / RUNNER)
        else:
            _emulate(plan, _plan_here(args, selection), qemu, stage)
    return stage.close(selection.reports)


def _plan(args: argparse.Namespace, selection: Selection) -> Plan:
    from provisioning.manifest import load_profile

    target = selection.target
    if target not in TARGETS:
        raise UsageError(
            f"--target: expected {' or '.join(TARGETS)}, found {target}",
            remedy="nox -s build_android builds the runner for Android from ExecuTorch's source",
        )
    if args.glibc and not re.fullmatch(r"\d+(\.\d+)+", args.glibc):
        raise UsageError(f"--glibc: expected a version like 2.34, found {args.glibc!r}")
    for pair in args.remap:
        if "=" not in pair or ";" in pair:
            raise UsageError(f"--remap: expected FROM=TO, found {pair!r}")
    dist, tree = _named_folders(args)
    host = load_profile(selection.profile).host
    native = target == DEFAULT_TARGET
    suffix = "" if args.build_type == BUILD_TYPES[0] else f"-{args.build_type}"
    return Plan(
        target=target,
        build_type=args.build_type,
        executorch=find_executorch(args.executorch, selection),
        compiler=find_compiler() if native else find_program("aarch64-linux-gnu-g++"),
        cmake=find_cmake(host["cmake"].floor),
        ninja=find_ninja(),
        remap=tuple(args.remap),
        tree=(tree or ROOT / "build" / "runner" / f"{target}{suffix}").absolute(),
        dist=(dist or ROOT / "dist" / target).absolute(),
    )


def _named_folders(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Where to stage and to compile, if that was said; UsageError where the user's files would be lost."""
    if args.output:
        refuse_foreign(args.output, str(RUNNER), "--output", STAGED)
    if args.build_dir:
        refuse_foreign(args.build_dir, LOG, "--build-dir")
    return args.output, args.build_dir


def find_executorch(named: Path | None, selection: Selection) -> Executorch:
    """What --executorch names; else this Python's package, or for another machine the store's wheel of it."""
    if named is not None:
        for root in (named, named / "executorch"):
            if (root / CONFIG).is_file():
                return _package(root.absolute())
        raise EnvironmentLacking(
            f"--executorch {named}: expected {CONFIG} in it, found none",
            remedy="name an unpacked executorch wheel",
        )
    if selection.target == DEFAULT_TARGET:
        spec = importlib.util.find_spec("executorch")
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(place) / CONFIG).is_file():
                return _package(Path(place))
        raise EnvironmentLacking(
            f"{sys.executable} has no executorch package with {CONFIG}",
            remedy="nox -s build_runner uses an environment that has it; or name one with --executorch DIR",
        )
    return _provisioned(selection)


def _provisioned(selection: Selection) -> Executorch:
    from provisioning.manifest import load_profile, soc_named
    from provisioning.store import Store, Want

    profile = load_profile(selection.profile)
    pin = profile.components.get("executorch-runtime")
    if pin is None:
        raise EnvironmentLacking(
            f"the profile {profile.name} has no executorch wheel of {selection.target}",
            remedy=f"--profile {DEFAULT_PROFILE}, or name an unpacked wheel with --executorch DIR",
        )
    want = Want(targets=frozenset({selection.target}), arches=frozenset({soc_named(selection.soc).arch}))
    if tree := Store(selection.store).find("executorch-runtime", pin, want):
        return _package(tree.root)
    raise EnvironmentLacking(
        f"the executorch wheel of {selection.target} is not in the store ({selection.store})",
        remedy=session("provision", "--target", selection.target, "--component", "executorch-runtime"),
    )


def _package(root: Path) -> Executorch:
    text = (root / CONFIG).with_name("executorch-config-version.cmake").read_text(encoding="utf-8")
    found = re.search(r'^set\(EXECUTORCH_BUILD_VERSION\s+"([^"]+)"', text, re.MULTILINE)
    return Executorch(root, found.group(1) if found else "unknown")


def _described(plan: Plan) -> str:
    lines = {
        "target": plan.target,
        "executorch": f"{plan.executorch.version} in {plan.executorch.root}",
        "compiler": f"{plan.compiler.path} ({plan.compiler.identity})",
        "cmake": f"{plan.cmake.path} ({plan.cmake.version})",
        "ninja": str(plan.ninja.path),
        "build tree": str(plan.tree),
        "staged in": str(plan.dist),
        "state": "up to date" if _kept(plan) else "to be built",
    }
    return "".join(f"{name:<10}  {value}\n" for name, value in lines.items())


def _make(plan: Plan, stage: StageRun, *, jobs: int, clean: bool) -> None:
    """Build and stage unless the staged files are already those of this plan."""
    with alone_in(plan.tree, "build"), alone_in(plan.dist, "dist"):
        files = None if clean else _kept(plan)
        stage.metrics["cached"] = files is not None
        begun = time.monotonic()
        if files is None:
            if clean:
                shutil.rmtree(plan.tree, ignore_errors=True)
            files = _compile(plan, jobs)
        stage.metrics["build_seconds"] = round(time.monotonic() - begun, 2)
    stage.artifacts += [
        Artifact(
            "runner" if path == str(RUNNER) else "library",
            str(plan.dist / path),
            digest,
            (plan.dist / path).stat().st_size,
        )
        for path, digest in sorted(files.items())
    ]
    stage.metrics |= {
        "executorch": plan.executorch.version,
        "compiler": plan.compiler.identity,
        "cmake": plan.cmake.version,
        "build_type": plan.build_type,
        "key": plan.key(),
    }


def _compile(plan: Plan, jobs: int) -> dict[str, str]:
    from ci.builds.install import replace as replace_staged

    work = Build(plan.cmake, plan.ninja, SOURCE, plan.tree, plan.log)
    stamp = plan.tree / STAMP
    stamp.unlink(missing_ok=True)
    work.configure(plan.definitions(), inputs=plan.inputs())
    work.build(jobs)
    part = plan.dist.with_name(f".{plan.dist.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        work.install(part, strip=plan.build_type == BUILD_TYPES[0])
        files = _staged(part)
        replace_staged(part, plan.dist)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    stamp.write_text(
        json.dumps({"key": plan.key(), "dist": str(plan.dist), "files": files}), encoding="utf-8"
    )
    return files


def _kept(plan: Plan) -> dict[str, str] | None:
    """What is staged, if it is untouched and exactly what this plan would give."""
    try:
        kept = json.loads((plan.tree / STAMP).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if kept.get("key") != plan.key() or kept.get("dist") != str(plan.dist):
        return None
    files: dict[str, str] = kept["files"]
    return files if _staged(plan.dist) == files else None


def _staged(dist: Path) -> dict[str, str]:
    """Digest by path, of the folders that are ours."""
    return {
        str(path.relative_to(dist)): _sha256(path)
        for folder in STAGED
        for path in sorted((dist / folder).glob("*"))
        if path.is_file()
    }


def _inspect(plan: Plan, glibc: str, stage: StageRun) -> None:
    private = (ROOT, plan.tree, plan.executorch.root, Path.home())
    built = [
        Built("library" if Path(place).parent == LIBRARIES else "runner", plan.dist / place, place)
        for place in _staged(plan.dist)
    ]
    stage.findings += check(built, plan.target, glibc, private)
    runner = elf.read(plan.dist / RUNNER)
    needed = [elf.read(file.path).highest("GLIBC") or "0" for file in built]
    stage.metrics |= {
        "machine": runner.machine_name,
        "interpreter": runner.interpreter,
        "needed": list(runner.needed),
        "glibc": max(needed, key=elf.version_key),
    }


def _backends(runner: Path) -> list[Metric]:
    """What the runner itself says it has."""
    result = subprocess.run(
        [str(runner), "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    found = re.search(r"^backends:(.*)$", result.stdout, re.MULTILINE)
    if result.returncode != 0 or found is None:
        raise CheckFailed(
            f"{runner} --version failed with exit code {result.returncode}:\n"
            f"  {result.stderr.strip()[-400:]}{causes(result.stderr)}",
            remedy="run it by hand; --clean builds it anew",
        )
    return [*found.group(1).split()]


def _plan_here(args: argparse.Namespace, selection: Selection) -> Plan:
    """The same runner for this machine, whose outputs another machine's must give."""
    # Only in the place of one that was built so too: one from source has a backend beside it.
    from_source = (ROOT / "dist" / DEFAULT_TARGET / MANIFEST).is_file()
    aside = ROOT / "build" / "runner" / "staged" if from_source else None
    here = argparse.Namespace(
        **{**vars(args), "executorch": None, "output": aside, "build_dir": None, "build_type": BUILD_TYPES[0]}
    )
    return _plan(here, replace(selection, target=DEFAULT_TARGET))


def _emulate(plan: Plan, here: Plan, qemu: Program, stage: StageRun) -> None:
    """Build the same runner for this machine, and hold the other's outputs to its."""
    sysroot = sysroot_of(plan.compiler)
    probe = probe_in(here.tree.parent / f"probe-{here.executorch.version}")
    aside = StageRun("build_runner", stage.profile, here.target, "")
    _make(here, aside, jobs=os.cpu_count() or 1, clean=False)
    compared = compare(plan.dist, here.dist, probe, qemu, sysroot)
    stage.findings += compared.findings
    stage.metrics |= {
        "qemu": qemu.version,
        "compared_values": compared.values,
        "largest_difference": compared.largest_difference,
    }


def _package_files(root: Path) -> Iterator[Path]:
    for folder in ("include", "lib", "share/cmake"):
        yield from (root / folder).rglob("*")


def _hashed(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _digest(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        whole.update(f"{path}\0{_sha256(path)}\n".encode())
    return whole.hexdigest()


def _sha256(path: Path) -> str:
    return Artifact.of("", path).sha256
