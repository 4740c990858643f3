"""A store that came damaged from GitHub's cache: made again with a warning, and saved again once."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.examples import filled
from tests.support.repositories import repository
from tests.support.sdk_archives import served_here, write_zip
from tests.support.workflows.machine import TOOLKIT, git, snapshot
from tests.support.workflows.run import Finished, run_workflow

FILES = {
    "source.properties": b"Pkg.Desc = Android NDK\nPkg.Revision = 26.2.11394342\n",
    "build/cmake/android.toolchain.cmake": b"# a toolchain\n",
    "toolchains/llvm/prebuilt/linux-x86_64/bin/clang": b"#!/bin/sh\necho clang\n",
}
WORKFLOW = """
    on: [pull_request, push]
    permissions: {}
    jobs:
      build:
        runs-on: ubuntu-24.04
        permissions: {}
        steps:
          - id: qnn
            uses: OWNER/qnn-ci/.github/actions/setup-qnn@COMMIT # VERSION
            with:
              profile: qnn-2.37
              components: android-ndk
              targets: aarch64-android
          - run: test "$("$ANDROID_NDK_ROOT/toolchains/llvm/prebuilt/linux-x86_64/bin/clang")" = clang
    """


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of this one, with a small NDK of this machine that needs no licence and so may be cached."""
    scratch = tmp_path_factory.mktemp("toolkit")
    archive = write_zip(scratch / "ndk.zip", FILES, prefix="android-ndk-r26c/").read_bytes()
    copy = snapshot(ROOT, scratch / "qnn-ci", TOOLKIT).root
    profile = copy / "manifests" / "profiles" / "qnn-2.37.toml"
    text = profile.read_text(encoding="utf-8")
    licence = r"\[components\.android-ndk\.licence\]\n(?:\w+ = .*\n)+"
    profile.write_text(re.sub(licence, "", text), encoding="utf-8")
    with served_here(profile, {"/android-ndk-r26c-linux.zip": archive}):
        git(copy, "commit", "--quiet", "--all", "-m", "A small NDK")
        yield copy


def flip_a_bit(store: Path) -> None:
    (clang,) = store.glob("trees/*/toolchains/llvm/prebuilt/linux-x86_64/bin/clang")
    clang.chmod(0o755)
    clang.write_bytes(clang.read_bytes()[:-2] + b"o\n")


def truncate(store: Path) -> None:
    (tree,) = store.glob("trees/*/build")
    subprocess.run(["rm", "-r", str(tree)], check=True)


def lose_the_inventory(store: Path) -> None:
    (inventory,) = store.glob("trees/*.json")
    inventory.unlink()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "bin/clang": flip_a_bit,
    "android.toolchain.cmake": truncate,
    ".json": lose_the_inventory,
}


def newest(cache: Path) -> Path:
    return max(cache.glob("*/*/*"), key=lambda file: file.stat().st_mtime_ns)


@pytest.mark.whole
def test_a_damaged_store_is_made_again_with_one_warning_and_the_default_branch_saves_it_anew(
    tmp_path: Path, toolkit: Path
) -> None:
    app = repository(tmp_path / "app", {".github/workflows/app.yml": filled(WORKFLOW)})
    cache, count = tmp_path / "cache", 0

    def run(event: str) -> Finished:
        nonlocal count
        count += 1
        done = run_workflow(tmp_path / str(count), "app", app, event=event, toolkit=toolkit, cache=cache)
        assert done.results() == {"build": "success"}, done.failures()
        return done

    assert "saved the cache" in run("push").log("build")
    for name, damage in DAMAGE.items():
        kept, store = newest(cache), tmp_path / f"damaged{name.replace('/', '-')}"
        store.mkdir()
        subprocess.run(["tar", "-xpf", kept], cwd=store, check=True)
        damage(store)
        subprocess.run(["tar", "-cf", kept, "."], cwd=store, check=True)
        for event in ("pull_request", "push") if name == ".json" else ("push",):
            done = run(event)
            (warning,) = done.jobs["build"].annotations
            assert warning.startswith("warning: ") and name in warning
            assert ("saved the cache" in done.log("build")) == (event == "push")
        assert newest(cache) != kept
    whole = run("push")
    assert whole.jobs["build"].annotations == []
    assert "restored the cache" in whole.log("build") and "saved the cache" not in whole.log("build")
