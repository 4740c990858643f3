"""The action setup-ndk in another repository's job: fetched from a server, or a directory of the user's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.examples import filled
from tests.support.repositories import IDENTITY, repository
from tests.support.sdk_archives import served_here, write_zip
from tests.support.workflows.machine import machine
from tests.support.workflows.run import JobResult, run_steps

REVISION = "26.2.11394342"
FILES = {
    "source.properties": f"Pkg.Desc = Android NDK\nPkg.Revision = {REVISION}\n".encode(),
    "build/cmake/android.toolchain.cmake": b"# a toolchain\n",
    "toolchains/llvm/prebuilt/linux-x86_64/bin/clang": b"#!/bin/sh\necho clang\n",
}
WORKFLOW = """
    on: [pull_request]
    permissions: {{}}
    jobs:
      build:
        runs-on: ubuntu-24.04
        permissions: {{}}
        steps:
          - id: ndk
            uses: OWNER/qnn-ci/.github/actions/setup-ndk@COMMIT # VERSION
            with:
              profile: qnn-2.37
              {licence}
          - run: |
              test "$ANDROID_NDK_ROOT" = "$NDK" && test "$ANDROID_NDK_HOME" = "$NDK"
              test "$("$NDK/toolchains/llvm/prebuilt/linux-x86_64/bin/clang")" = clang
              echo "the NDK $VERSION is $NDK, cached: $CACHED"
            env:
              NDK: ${{{{ steps.ndk.outputs.ndk-root }}}}
              VERSION: ${{{{ steps.ndk.outputs.version }}}}
              CACHED: ${{{{ steps.ndk.outputs.cache-hit }}}}
    """
ACCEPTED = "accept-licences: android-sdk"


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A clone of this one, whose profile qnn-2.37 names an NDK of this machine."""
    scratch = tmp_path_factory.mktemp("toolkit")
    archive = write_zip(scratch / "ndk.zip", FILES, prefix="android-ndk-r26c/").read_bytes()
    clone = scratch / "qnn-ci"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    profile = clone / "manifests" / "profiles" / "qnn-2.37.toml"
    with served_here(profile, {"/android-ndk-r26c-linux.zip": archive}):
        commit = ["git", *IDENTITY, "commit", "--quiet", "--all", "-m", "A small NDK"]
        subprocess.run(commit, cwd=clone, check=True)
        yield clone


def build(tmp_path: Path, toolkit: Path, licence: str, env: Mapping[str, str] | None = None) -> JobResult:
    root = repository(
        tmp_path / "app", {".github/workflows/app.yml": filled(WORKFLOW.format(licence=licence))}
    )
    with machine(tmp_path / "run", root, env=env, toolkit=toolkit) as github:
        return run_steps(github)


@pytest.mark.whole
def test_a_job_gets_the_ndk_of_a_profile_verified(tmp_path: Path, toolkit: Path) -> None:
    done = build(tmp_path, toolkit, ACCEPTED)
    assert done.result == "success", done.log[-4000:]
    assert f"the NDK {REVISION} is " in done.log


@pytest.mark.whole
def test_an_ndk_of_the_users_own_is_used_as_it_is(tmp_path: Path, toolkit: Path) -> None:
    own = tmp_path / "my-ndk"
    for name, data in FILES.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(data)
    shutil.copymode("/bin/sh", own / "toolchains/llvm/prebuilt/linux-x86_64/bin/clang")
    done = build(tmp_path, toolkit, "cache: false", {"ANDROID_NDK_ROOT": str(own)})
    assert done.result == "success", done.log[-4000:]
    assert f"the NDK {REVISION} is {own}, cached: false" in done.log
