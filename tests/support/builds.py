"""Running a build from source as a user would, and what it left."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.elves import AARCH64, Library
from tests.support.typed import typed

STEERING = ("QNN_SDK_ROOT", "EXECUTORCH_ROOT", "ANDROID_NDK_ROOT", "QNN_CI_PROFILE", "QNN_CI_SOC")


@dataclass(frozen=True)
class Built:
    code: int
    out: str
    err: str
    folder: Path
    stage: str

    @property
    def dist(self) -> Path:
        return self.folder / "dist"

    @property
    def log(self) -> str:
        return (self.folder / "build" / "build.log").read_text(encoding="utf-8")

    @property
    def report(self) -> Any:
        return json.loads((self.folder / "reports" / f"{self.stage}.json").read_text(encoding="utf-8"))

    @property
    def manifest(self) -> Any:
        return json.loads((self.dist / "manifest.json").read_text(encoding="utf-8"))

    def rules(self) -> set[str]:
        return {finding["rule"] for finding in self.report["findings"] if finding["severity"] == "error"}


def run_stage(
    stage: str, *flags: str | Path, environ: Mapping[str, str | Path]
) -> subprocess.CompletedProcess[str]:
    added = {name: str(value) for name, value in environ.items()}
    if "CCACHE_DIR" not in added:
        # So that what is compiled twice is compiled twice.
        added["CCACHE_DISABLE"] = "1"
    kept = {name: value for name, value in os.environ.items() if name not in STEERING}
    return typed(stage, *flags, env={**kept, **added})


def build(
    stage: str,
    folder: Path,
    tree: Path,
    sdk: Path,
    *flags: str | Path,
    ndk: Path | None = None,
    ccache: Path | None = None,
) -> Built:
    """In folder: build/, dist/ and reports/."""
    places = ("--build-dir", folder / "build", "--output", folder / "dist", "--reports", folder / "reports")
    environ: dict[str, str | Path] = {
        "QNN_SDK_ROOT": sdk,
        "EXECUTORCH_ROOT": tree,
        "QNN_CI_STORE": folder / "store",
    }
    if ndk is not None:
        environ["ANDROID_NDK_ROOT"] = ndk
    if ccache is not None:
        environ["CCACHE_DIR"] = ccache
    # The profile whose pins the stand-ins have.
    done = run_stage(stage, "--profile", "qnn-2.37", *places, *flags, environ=environ)
    return Built(done.returncode, done.stdout, done.stderr, folder, stage)


def gone(process: int) -> bool:
    """Whether a process ended, waiting for it a while."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def write_build(folder: Path) -> Path:
    """A build as far as a bundle looks at it."""
    backend = "libqnn_executorch_backend.so"
    Library(machine=AARCH64, needed=["libc.so.6", backend]).write(folder / "bin" / "qnn_executor_runner")
    Library(machine=AARCH64, needed=["libc.so.6"], soname=backend).write(folder / "lib" / backend)
    return folder
