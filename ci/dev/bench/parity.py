"""Buck parity beside the plain way to learn what CMake builds: one configure step for each platform.

The check lets CMake read the tree for every platform too, so it is measured against as many configure steps,
one after another. All are for the host: Android and Hexagon need compilers that a machine may not have.
The check is timed from listing the tree to the findings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.builds.programs import find_cmake, find_ninja
from ci.dev import miniature_tree
from ci.dev.bench.frame import Aim, Benchmark, Contender
from ci.parity.mapping import load_mapping
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Outcome, Report
from provisioning.base.settings import ROOT

CHECK, PARITY, CMAKE = "check", "parity, whole process", "cmake configure, each platform"
AIMS = (Aim(CHECK, 1.0), Aim(CHECK, CMAKE))
LEAST_CMAKE = "3.28"
FIX = "nox -s tests -- tests/integration/test_parity.py"


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    """A miniature tree, also with `quick`."""
    root = miniature_tree.write(work / "executorch")
    cmake, ninja = find_cmake(LEAST_CMAKE), find_ninja()
    names = [path.rpartition("/")[2] for path in miniature_tree.files()]

    platforms = {platform for pair in load_mapping().pairs for platform in pair.variants}

    def configure(into: Path) -> None:
        command = [str(cmake.path), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja.path}", "-S", str(root)]
        for platform in platforms:
            build = ["-B", str(into / platform)]
            subprocess.run([*command, *build], check=True, stdout=subprocess.DEVNULL)

    yield Benchmark(
        contenders=(
            Contender(CHECK, lambda into: _check(root)),
            Contender(PARITY, lambda into: _parity(root, into), _check_report),
            Contender(CMAKE, configure, _check_configured),
        ),
        aims=AIMS,
        facts={
            "files": len(names),
            "buck_files": sum(name in ("BUCK", "targets.bzl") for name in names),
            "cmake_files": sum(name == "CMakeLists.txt" or name.endswith(".cmake") for name in names),
        },
    )


def _check(root: Path) -> None:
    from ci.parity.check import check
    from ci.parity.differences import Source
    from ci.parity.mapping import MAPPING
    from ci.parity.tree import Tree

    source = Source("manifests/parity.toml", MAPPING.read_text(encoding="utf-8"))
    if differences := check(Tree(root), load_mapping(), source).differences:
        raise CheckFailed(f"expected a clean tree, found {differences[0].message}", fix=FIX)


def _parity(root: Path, into: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "ci", "buck_parity", "--executorch", str(root), "--reports", str(into)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")},
        stdout=subprocess.DEVNULL,
        check=False,
    )


def _check_report(directory: Path) -> None:
    report = Report.read(directory / "buck_parity.json")
    if report.outcome is not Outcome.PASS:
        raise CheckFailed(
            f"expected a clean tree, found {[finding.message for finding in report.findings[:3]]}",
            fix=FIX,
        )


def _check_configured(directory: Path) -> None:
    if not all((build / "build.ninja").is_file() for build in directory.iterdir()):
        raise CheckFailed("cmake made no build.ninja", fix="run it by hand on the miniature tree")
