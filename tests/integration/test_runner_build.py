"""`build_runner` as it is typed: reproducible, quick when nothing changed, and checked for its target."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import sys
from pathlib import Path

import pytest

from ci.builds.emulator_runner import _provisioned, find_executorch
from provisioning import elf
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import ROOT, Selection
from tests.support.runner import build, dist

__all__ = ["dist"]
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


def test_nothing_changed_is_told_in_less_than_a_second(dist: Path) -> None:
    before = digests(dist)
    # Of processor time: what else the machine does is no fault of ours.
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)

    result = build(dist.parent)

    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    report = json.loads((dist.parent / "reports" / "build_runner.json").read_text(encoding="utf-8"))
    assert report["metrics"]["cached"] is True
    assert digests(dist) == before
    assert ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime < 1


def test_a_changed_library_is_staged_again(dist: Path, tmp_path: Path) -> None:
    shutil.copytree(dist.parent / "tree", tmp_path / "tree")
    assert build(tmp_path).returncode == 0
    victim = tmp_path / "dist" / "lib" / "libexecutorch.so"
    good = victim.read_bytes()
    victim.write_bytes(good[:-1])

    assert build(tmp_path).returncode == 0

    assert victim.read_bytes() == good


def test_the_report_names_every_staged_file(dist: Path) -> None:
    report = json.loads((dist.parent / "reports" / "build_runner.json").read_text(encoding="utf-8"))

    named = {str(Path(item["path"]).relative_to(dist)): item["sha256"] for item in report["artifacts"]}
    assert named == digests(dist)
    assert "QnnBackend" in report["metrics"]["backends"]


def test_the_first_error_of_a_failed_build_is_shown(tmp_path: Path) -> None:
    checkout = copied(tmp_path / "checkout")
    source = checkout / "ci" / "builds" / "runner" / "src" / "metrics.cpp"
    source.write_text(source.read_text(encoding="utf-8") + "\nint broken = missing;\n", encoding="utf-8")

    result = build(tmp_path / "out", cwd=checkout)

    assert result.returncode == 1
    assert "metrics.cpp" in result.stderr
    assert "error: " in result.stderr
    assert f"read {tmp_path / 'out' / 'tree' / 'build.log'}" in result.stderr
    assert not (tmp_path / "out" / "dist").exists()


@pytest.fixture(scope="session")
def arm_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another machine's executorch wheel, from the user's store or brought into one of our own."""
    from provisioning.base.settings import store_path
    from provisioning.manifest import load_profile
    from provisioning.store import Store, Want

    selection = Selection("wheels", "aarch64-linux", "SM8650", store_path(), Path("reports"))
    try:
        return _provisioned(selection).root
    except EnvironmentLacking:
        store = Store(tmp_path_factory.mktemp("store"))
        pin = load_profile("wheels").components["executorch-runtime"]
        want = Want(targets=frozenset({"aarch64-linux"}), arches=frozenset({75}))
        return store.provision("executorch-runtime", pin, want, locked=True).root


def test_cross_compiles_for_arm_or_names_the_package_that_lacks(tmp_path: Path, arm_package: Path) -> None:
    result = build(tmp_path, "--target", "aarch64-linux", "--executorch", arm_package)

    lacking = {
        "aarch64-linux-gnu-g++": "apt-get install g++-aarch64-linux-gnu",
        "qemu-aarch64": "apt-get install qemu-user",
    }
    for program, remedy in lacking.items():
        if shutil.which(program) is None:
            assert (result.returncode, remedy in result.stderr) == (3, True)
            return
    assert result.returncode == 0, result.stdout + result.stderr
    metrics = json.loads((tmp_path / "reports" / "build_runner.json").read_text(encoding="utf-8"))["metrics"]
    assert (metrics["machine"], metrics["interpreter"]) == ("AArch64", "/lib/ld-linux-aarch64.so.1")
    assert metrics["compared_values"] == 10
    assert metrics["largest_difference"] <= 1e-5
