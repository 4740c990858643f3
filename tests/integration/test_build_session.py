"""The builds as they are typed: through nox, with variables of the user's own or with nothing at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from provisioning.base.settings import OFFICIAL_PROFILE, ROOT
from provisioning.components import COMPONENT_VARIABLES
from tests.support.miniature_executorch import make_sdk, make_tree
from tests.support.scripts import locked_environment
from tests.support.stand_in_ndk import make_ndk

STEERING = (*COMPONENT_VARIABLES.values(), "ANDROID_NDK", "ANDROID_NDK_HOME", "QNN_CI_PROFILE", "QNN_CI_SOC")


def nox(folder: Path, *words: str | Path, environ: Mapping[str, Path]) -> subprocess.CompletedProcess[str]:
    """With this Python for every session, as in our images."""
    for lock in ROOT.glob("manifests/locks/*.txt"):
        locked_environment(folder / "environments", lock.stem)
    ours = {
        "QNN_CI_ENVIRONMENTS": folder / "environments",
        "QNN_CI_STORE": folder / "store",
        "QNN_CI_REPORTS": folder / "reports",
        **environ,
    }
    kept = {name: value for name, value in os.environ.items() if name not in STEERING}
    return subprocess.run(
        [sys.executable, "-m", "nox", "-f", ROOT / "noxfile.py", "-s", *words],
        cwd=folder,
        env={**kept, **{name: str(value) for name, value in ours.items()}},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.whole
@pytest.mark.needs("clang++", "ld.lld")
def test_android_is_built_with_what_variables_name(tmp_path: Path) -> None:
    """The default profile has no NDK: the user's own serves all the same."""
    own = {
        "EXECUTORCH_ROOT": make_tree(tmp_path),
        "QNN_SDK_ROOT": make_sdk(tmp_path / "sdk"),
        "ANDROID_NDK_ROOT": make_ndk(tmp_path / "ndk"),
    }
    places = ("--build-dir", tmp_path / "build", "--output", tmp_path / "dist")
    done = nox(tmp_path, "build_android", "--", *places, environ=own)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "reports" / "build_android.json").read_text(encoding="utf-8"))
    assert (report["outcome"], report["profile"]) == ("pass", "wheels")


def test_with_nothing_there_all_that_lacks_is_reported_at_once_with_the_command_that_brings_it(
    tmp_path: Path,
) -> None:
    done = nox(tmp_path, "build_android", "validate", environ={})
    printed = done.stdout + done.stderr
    assert "named by QNN_SDK_ROOT, ANDROID_NDK_ROOT and EXECUTORCH_ROOT" in printed
    components = "--component qnn-sdk --component android-ndk --component executorch-source"
    assert f"try: nox -s provision -- --profile {OFFICIAL_PROFILE} " in printed and components in printed
    # A session after one that failed still runs.
    assert done.returncode != 0
    assert "* build_android: failed" in printed and "* validate: failed" in printed
    assert "Traceback" not in printed
