"""The builds from source, of a miniature tree: really compiled, and run under qemu."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from provisioning import elf
from provisioning.base.settings import ROOT, profile_names
from provisioning.manifest import load_profile
from provisioning.sources import Git
from tests.support.builds import Built, build, gone
from tests.support.miniature_executorch import commit_all, digest, make_llama, make_old, make_sdk, make_tree
from tests.support.scripts import script
from tests.support.stand_in_ndk import make_ndk

pytestmark = pytest.mark.needs("aarch64-linux-gnu-g++", "clang++", "ld.lld", "qemu-aarch64")

RUNNER = "bin/qnn_executor_runner"
LIBRARY = "lib/libqnn_executorch_backend.so"
RUNNERS = ("bin/llama_main", RUNNER, "bin/qnn_llama_runner")
ARM64 = "build_linux_arm64"


@dataclass(frozen=True)
class Sources:
    tree: Path
    sdk: Path
    ndk: Path
    folder: Path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("sources")
    return Sources(whole_tree(folder), make_sdk(folder / "sdk"), make_ndk(folder / "ndk"), folder)


def whole_tree(folder: Path) -> Path:
    """With the runners of language models, as newer trees are."""
    tree = make_tree(folder, commit=False)
    make_llama(tree)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    commit_all(tree)
    return tree


@pytest.fixture(scope="module")
def arm64(sources: Sources) -> Built:
    return build(ARM64, sources.folder / "arm64", sources.tree, sources.sdk)


@pytest.fixture(scope="module")
def android(sources: Sources) -> Built:
    return build("build_android", sources.folder / "android", sources.tree, sources.sdk, ndk=sources.ndk)


def hashes(dist: Path) -> dict[str, str]:
    return {
        str(path.relative_to(dist)): digest(path)
        for path in sorted(dist.rglob("*"))
        if path.is_file() and "overlay" not in path.parts
    }


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_build_names_each_file_and_what_it_was_made_of(arm64: Built, sources: Sources) -> None:
    assert (arm64.code, arm64.report["outcome"], arm64.report["findings"]) == (0, "pass", []), arm64.err
    # A library that is shared here and static on Android, and no tool of a submodule.
    shipped = (*RUNNERS, "lib/libllama_runner.so", LIBRARY)
    files = {path: digest(arm64.dist / path) for path in shipped}
    manifest = arm64.manifest
    assert {file["path"]: file["sha256"] for file in manifest["files"]} == files
    bill = json.loads((arm64.dist / "sbom.cdx.json").read_text(encoding="utf-8"))
    listed = [component for component in bill["components"] if component["type"] == "file"]
    assert {component["name"]: component["hashes"][0]["content"] for component in listed} == files
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=sources.tree, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (manifest["commit"], manifest["changed"], manifest["qnn_build_id"], manifest["executorch"]) == (
        commit,
        False,
        "v2.37.0.250724175447_124859",
        "1.5.1",
    )


def test_licences_and_submodules_are_those_of_what_is_linked(arm64: Built, android: Built) -> None:
    """Of libraries, of headers alone, and of a submodule's submodule; not of what only lies in the tree."""
    re2 = "extension/llm/tokenizers/third-party/re2"
    eigen = "kernels/optimized/third-party/eigen"
    texts = ["LICENSE", f"{re2}/LICENSE", f"{eigen}/COPYING", "third-party/gflags/LICENSE"]
    for built, more in ((arm64, []), (android, ["android-ndk/NOTICE"])):
        folder = built.dist / "licences"
        found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        assert sorted(found) == sorted([*texts, *more])
        bill = json.loads((built.dist / "sbom.cdx.json").read_text(encoding="utf-8"))
        names = {component["name"] for component in bill["components"] if component["type"] == "library"}
        assert names == {"qnn-sdk", "re2", "eigen", "gflags"}


def test_what_is_shipped_names_no_folder_of_this_machine_and_the_tree_is_left_as_it_was(
    arm64: Built, sources: Sources
) -> None:
    for path in arm64.dist.rglob("*"):
        if path.is_file():
            assert os.fsencode(sources.folder) not in path.read_bytes(), path
    status = ["git", "status", "--porcelain", "--ignored"]
    assert subprocess.run(status, cwd=sources.tree, capture_output=True, check=True).stdout == b""


@pytest.mark.whole
def test_of_one_tree_each_target_has_its_own_and_goes_on_with_it(tmp_path: Path, sources: Sources) -> None:
    """flatcc puts its library into the source folder: the second build would link that of the first."""
    tree = make_tree(tmp_path)
    source = tree / "third-party/flatcc/src/runtime/builder.c"
    for number in (1, 2):
        first = build(ARM64, tmp_path / "arm64", tree, sources.sdk)
        second = build("build_android", tmp_path / "android", tree, sources.sdk, ndk=sources.ndk)
        assert (first.code, second.code) == (0, 0), (number, first.err, second.err)
        source.write_text(f"{source.read_text(encoding='utf-8')}/* {number} */\n", encoding="utf-8")
    assert first.report["metrics"]["rebuilt_because"] == second.report["metrics"]["rebuilt_because"] == []
    assert "builder.c" in first.log
    assert sorted(path.name for path in (tree / "third-party/flatcc").iterdir()) == ["CMakeLists.txt", "src"]


@pytest.mark.whole
def test_a_users_folder_is_refused(tmp_path: Path, sources: Sources) -> None:
    precious = tmp_path / "build" / "thesis.txt"
    precious.parent.mkdir()
    precious.touch()
    refused = build(ARM64, tmp_path, sources.tree, sources.sdk, "--clean")
    assert (refused.code, precious.is_file()) == (2, True)


def test_the_dry_run_prints_the_commands_that_the_build_runs(sources: Sources, arm64: Built) -> None:
    before = hashes(arm64.folder)
    printed = build(ARM64, arm64.folder, sources.tree, sources.sdk, "--dry-run")
    commands = [line for line in printed.out.splitlines() if re.match(r"\S*cmake ", line)]
    assert commands == [line[2:] for line in arm64.log.splitlines() if line.startswith("$ ")]
    assert hashes(arm64.folder) == before
    subprocess.run(["sh", "-n"], input=printed.out, text=True, check=True, timeout=60)


@pytest.mark.long("builds the tree three times")
def test_a_changed_source_is_compiled_alone_and_what_fails_leaves_the_last_good_build(tmp_path: Path) -> None:
    tree, sdk = make_tree(tmp_path), make_sdk(tmp_path / "sdk")
    first = build(ARM64, tmp_path, tree, sdk)
    unchanged = build(ARM64, tmp_path, tree, sdk)
    assert (unchanged.code, unchanged.report["artifacts"]) == (0, first.report["artifacts"]), unchanged.err
    assert not re.search(r"(?m)^\[|^\$ \S+ -S", unchanged.log)
    source = tree / "backends/qualcomm/runtime/backends/htp/target/HtpDevice.cpp"
    source.write_text(source.read_text(encoding="utf-8").replace("4000", "4001"), encoding="utf-8")
    good = build(ARM64, tmp_path, tree, sdk)
    assert good.code == 0, good.err
    assert len(re.findall(r"Building CXX object", good.log)) == 1
    assert good.manifest["changed"] is True
    before = hashes(good.dist)

    refused = build(ARM64, tmp_path, tree, sdk, "--glibc", "2.16")
    assert (refused.code, refused.rules(), hashes(good.dist)) == (1, {"build-glibc"}, before), refused.err

    with source.open("a", encoding="utf-8") as stream:
        stream.write("int broken = nothing;\n")
    broken = build(ARM64, tmp_path, tree, sdk)
    assert (broken.code, broken.report["outcome"], hashes(good.dist)) == (1, "fail", before)
    assert "error: 'nothing' was not declared" in broken.err.replace("‘", "'").replace("’", "'")
    replace_in(source, "int broken = nothing;\n", "")

    replace_in(
        tree / "backends/qualcomm/runtime/CMakeLists.txt",
        "target_sources(qnn_manager",
        'target_compile_definitions(qnn_manager PRIVATE QNN_API_VERSION="${CMAKE_SOURCE_DIR}")\n'
        "target_sources(qnn_manager",
    )
    replace_in(sdk / "include/QNN/QnnCommon.h", "#pragma once", "#pragma once\n#ifndef QNN_API_VERSION")
    with (sdk / "include/QNN/QnnCommon.h").open("a", encoding="utf-8") as header:
        header.write("#endif\n")
    with_paths = build(ARM64, tmp_path, tree, sdk)
    assert (with_paths.code, with_paths.rules(), hashes(good.dist)) == (1, {"build-paths"}, before)


@pytest.mark.long("builds the tree twice")
@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.whole), signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing_at_work_and_goes_on_later(
    sources: Sources, tmp_path: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler waits as long as a file is there, and says that it does."""
    waits, waiting = tmp_path / "waits", tmp_path / "waiting"
    for name in ("gcc", "g++"):
        real = shutil.which(f"aarch64-linux-gnu-{name}")
        waiter = f"[ -e {waits} ] && echo $$ > {waiting} && exec sleep 300"
        slow = tmp_path / "bin" / f"aarch64-linux-gnu-{name}"
        script(slow, f'case "$*" in *platform.cpp*) {waiter};; esac\nexec {real} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    waits.touch()
    places = ("--build-dir", tmp_path / "build", "-o", tmp_path / "dist", "--reports", tmp_path / "reports")
    command = [sys.executable, "-m", "ci", ARM64, "--profile", "qnn-2.37", *places]
    named = {"QNN_SDK_ROOT": str(sources.sdk), "EXECUTORCH_ROOT": str(sources.tree), "CCACHE_DISABLE": "1"}
    environ = {**os.environ, **named}
    with subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=environ, stderr=subprocess.DEVNULL
    ) as process:
        while not (waiting.is_file() and waiting.read_text(encoding="utf-8").strip()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(how)
        assert process.wait(timeout=60) == 128 + how
    assert gone(int(waiting.read_text(encoding="utf-8")))
    waits.unlink()
    again = build(ARM64, tmp_path, sources.tree, sources.sdk)
    assert (again.code, again.report["metrics"]["rebuilt_because"]) == (0, []), again.err


def test_android_gets_large_pages_its_loader_and_its_api(android: Built) -> None:
    assert (android.code, android.report["outcome"]) == (0, "pass"), android.err
    assert sorted(file["path"] for file in android.manifest["files"]) == [*RUNNERS, LIBRARY]
    runner = elf.read(android.dist / RUNNER)
    assert (min(runner.alignments), runner.interpreter, runner.android_api) == (
        0x4000,
        "/system/bin/linker64",
        30,
    )


@pytest.mark.heavy
def test_the_pinned_source_is_what_the_wheel_was_built_from() -> None:
    from executorch.version import git_version

    profiles = [name for name in map(load_profile, profile_names()) if "executorch-source" in name.components]
    assert profiles
    for profile in profiles:
        source = profile.components["executorch-source"].parts[0].source
        assert isinstance(source, Git)
        wheel = (f"v{version('executorch').partition('+')[0]}", git_version)
        assert (source.tag, source.commit) == wheel, profile.name


@pytest.fixture(scope="module")
def x86_tree(sources: Sources) -> Path:
    tree = make_tree(sources.folder / "x86", pybind11=True)
    make_old(tree)
    return tree


@pytest.fixture(scope="module")
def x86(sources: Sources, x86_tree: Path) -> Built:
    return build("build_x86", sources.folder / "x86", x86_tree, sources.sdk)


@pytest.mark.whole
@pytest.mark.heavy
def test_each_adaptor_of_the_tree_is_built_and_imported_with_the_printed_python_path(
    x86: Built, tmp_path: Path
) -> None:
    assert x86.code == 0, x86.err
    adaptors = [Path(file["path"]).name for file in x86.manifest["files"] if file["kind"] == "adaptor"]
    names = ["PyQnnManagerAdaptor", "PyQnnWrapperAdaptor", "libquantized_ops_aot_lib"]
    assert [name.partition(".")[0] for name in adaptors] == names
    line = next(line for line in x86.out.splitlines() if line.startswith("export PYTHONPATH="))
    code = (
        "from executorch.backends.qualcomm.python import PyQnnManagerAdaptor as a, PyQnnWrapperAdaptor\n"
        "from executorch.exir._serialize import schema\n"
        "from executorch.kernels.quantized import loaded\n"
        "print(a.add(2, 3), a.api, 'ET12' in schema(), loaded)\n"
    )
    (tmp_path / "try.py").write_text(code, encoding="utf-8")
    command = f"{line}\nexec {sys.executable} try.py"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "5 2.27.0 True quantized_decomposed", done.stderr
