"""The builds as they are typed: through nox, with nothing there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from provisioning.base.settings import OFFICIAL_PROFILE, ROOT
from provisioning.components import COMPONENT_VARIABLES
from tests.support.scripts import locked_environment

STEERING = (*COMPONENT_VARIABLES.values(), "ANDROID_NDK", "ANDROID_NDK_HOME", "QNN_CI_PROFILE", "QNN_CI_SOC")


def nox(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """With this Python for every session, as in our images."""
    for lock in ROOT.glob("manifests/locks/*.txt"):
        locked_environment(folder / "environments", lock.stem)
    ours = {
        "QNN_CI_ENVIRONMENTS": folder / "environments",
        "QNN_CI_STORE": folder / "store",
        "QNN_CI_REPORTS": folder / "reports",
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


def test_with_nothing_there_all_that_lacks_is_reported_at_once_with_the_command_that_brings_it(
    tmp_path: Path,
) -> None:
    done = nox(tmp_path, "build_android", "validate")
    printed = done.stdout + done.stderr
    assert "named by QNN_SDK_ROOT, ANDROID_NDK_ROOT and EXECUTORCH_ROOT" in printed
    components = "--component qnn-sdk --component android-ndk --component executorch-source"
    assert f"try: nox -s provision -- --profile {OFFICIAL_PROFILE} " in printed and components in printed
    # A session after one that failed still runs.
    assert done.returncode != 0
    assert "* build_android: failed" in printed and "* validate: failed" in printed
    assert "Traceback" not in printed
