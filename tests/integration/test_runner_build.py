"""`build_runner` as it is typed: reproducible, cached only while nothing changed, checked for its target."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.builds.runner_build import find_executorch
from provisioning import elf
from provisioning.base.settings import ROOT, Selection
from tests.support.runner import build, build_in_place, dist, runner_reports

__all__ = ["dist", "runner_reports"]
pytestmark = pytest.mark.heavy

HERE = Selection("wheels", "x86_64-linux", "SM8650", Path("store"), Path("reports"))


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def copied(into: Path) -> Path:
    """What a build needs of this project."""
    for name in ("ci", "provisioning", "manifests"):
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
    return into


@pytest.mark.whole
def test_two_builds_anywhere_are_the_same_to_the_bit(dist: Path, tmp_path: Path) -> None:
    package = find_executorch(None, HERE).root
    for name in ("include", "lib", "share/cmake"):
        shutil.copytree(package / name, tmp_path / "another package" / name)

    result = build(
        tmp_path / "elsewhere",
        *("--executorch", tmp_path / "another package"),
        cwd=copied(tmp_path / "a checkout of another name"),
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert digests(tmp_path / "elsewhere" / "dist") == digests(dist)


def test_the_runner_holds_no_path_of_this_machine(dist: Path) -> None:
    content = (dist / "bin" / "qnn_executor_runner").read_bytes()

    for path in (ROOT, dist.parent, Path(sys.prefix), Path.home()):
        assert str(path).encode() not in content
    assert elf.read(dist / "bin" / "qnn_executor_runner").runpath == ("$ORIGIN/../lib",)


def test_nothing_changed_nothing_is_built(dist: Path, tmp_path: Path) -> None:
    before = digests(dist)
    result = build_in_place(tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "build_runner.json").read_text(encoding="utf-8"))
    assert report["metrics"]["cached"] is True
    assert digests(dist) == before


def test_a_cached_build_is_copied_into_another_folder(dist: Path, tmp_path: Path) -> None:
    done = build_in_place(tmp_path / "reports", "--output", str(tmp_path / "other"))
    assert (done.returncode, "building the runner" in done.stderr) == (0, False), done.stderr
    assert digests(tmp_path / "other") == digests(dist)
    assert os.access(tmp_path / "other" / "bin" / "qnn_executor_runner", os.X_OK)


@dataclass(frozen=True)
class Clone:
    """A checkout, an executorch package and a compiler of its own, and what was built with them."""

    folder: Path
    checkout: Path
    package: Path
    compiler: Path

    def run(self, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
        named = ("--executorch", str(self.package), "--build-type", "Debug")
        return build(
            self.folder, *named, *flags, cwd=self.checkout, environ={"CXX": str(self.compiler), **environ}
        )


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    folder = tmp_path_factory.mktemp("clone")
    package = find_executorch(None, HERE).root
    for name in ("include", "lib", "share/cmake"):
        shutil.copytree(package / name, folder / "package" / name)
    compiler = folder / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    clone = Clone(folder, copied(folder / "checkout"), folder / "package", compiler)
    result = clone.run()
    assert result.returncode == 0 and "starts anew" not in result.stderr, result.stdout + result.stderr
    return clone


INPUTS = {
    "checkout/ci/builds/runner/src/metrics.cpp": "sources",
    "checkout/ci/builds/runner/src/metrics.h": "sources",
    "checkout/ci/builds/runner/CMakeLists.txt": "sources",
    "checkout/ci/builds/cmake.py": "own code.cmake.py",
    "package/include/executorch/runtime/executor/program.h": "executorch.include",
    "package/lib/libexecutorch.so": "executorch.lib",
    "package/share/cmake/executorch-config.cmake": "executorch.share/cmake",
    "g++": "tools.compiler",
}
"""Files that a build reads, and as what of it each is named."""


@pytest.mark.whole
@pytest.mark.parametrize("place", INPUTS)
def test_whatever_the_build_read_has_it_built_again_and_is_named(clone: Clone, place: str) -> None:
    """Also when the new file is older than what was built, as of a package that was installed anew."""
    path = clone.folder / place
    content, status = path.read_bytes(), path.stat()
    path.write_bytes(content + b"\n")
    os.utime(path, (0, 0))
    try:
        changed = clone.run("--dry-run").stdout
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert f"to be built: {INPUTS[place]}" in changed, changed
    assert "up to date" in clone.run("--dry-run").stdout


@pytest.mark.whole
def test_a_changed_file_is_replaced_by_what_was_there_once_a_build_passes_its_checks(clone: Clone) -> None:
    """Whatever variables compilers and CMake would read."""
    before = digests(clone.folder / "dist")
    victim = clone.folder / "dist" / "lib" / "libexecutorch.so"
    victim.write_bytes(victim.read_bytes()[:-1])
    damaged = digests(clone.folder / "dist")
    refused = clone.run("--glibc", "2.2")
    assert (refused.returncode, "build-glibc" in refused.stdout) == (1, True), refused.stdout
    assert digests(clone.folder / "dist") == damaged
    assert "up to date" not in clone.run("--dry-run").stdout
    decoy = clone.folder / "decoy" / "share/cmake/executorch/executorch-config.cmake"
    decoy.parent.mkdir(parents=True)
    decoy.write_text('message(FATAL_ERROR "another executorch")\n', encoding="utf-8")
    variables = {
        "CXXFLAGS": "-O1 -DX",
        "LDFLAGS": "-Wl,-rpath,/opt",
        "EXECUTORCH_ROOT": str(clone.folder / "decoy"),
    }
    done = clone.run(**variables)
    assert done.returncode == 0, done.stderr
    assert digests(clone.folder / "dist") == before
    assert "up to date" in clone.run("--dry-run", CXXFLAGS="-O0").stdout
