"""Where stages put what later stages read: builds below dist/<target>/, bundles and signed libraries."""

from __future__ import annotations

from pathlib import Path

from provisioning.base.settings import dist_path

RUNNER = Path("bin/qnn_executor_runner")
LIBRARIES = Path("lib")
MANIFEST = "manifest.json"
"""Only a build from ExecuTorch's source has one."""
OURS = Path("wheel")
"""The folder of `build_runner`, with a bin/ and lib/ of its own: ExecuTorch's runner has the same name."""
BUNDLES = dist_path() / "bundles"
SIGNED = dist_path() / "overlay"
"""The libraries that `sign_lpai` signed, as they lie in an SDK."""


def runner_of(dist: Path) -> Path | None:
    """The runner for a target: that of a build from ExecuTorch's source, else ours, else none."""
    chosen = build_of(dist) / RUNNER
    return chosen if chosen.is_file() else None


def build_of(dist: Path) -> Path:
    """The folder of the build whose runner serves a target."""
    return dist if (dist / MANIFEST).is_file() and (dist / RUNNER).is_file() else dist / OURS
