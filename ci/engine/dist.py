"""Where builds put their files below dist/<target>/, for the stages that read them."""

from __future__ import annotations

from pathlib import Path

RUNNER = Path("bin/qnn_executor_runner")
LIBRARIES = Path("lib")
MANIFEST = "manifest.json"
"""Only a build from ExecuTorch's source has one."""
