"""A device whose shell is this machine's."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from ci.device.transport import CommandResult


class Local:
    name = "local"

    def shell(self, script: str, *, seconds: float = 0) -> CommandResult:
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        return CommandResult(done.returncode, done.stdout + done.stderr)

    def push(self, files: Mapping[str, Path], folder: str) -> None:
        for place, path in files.items():
            (Path(folder) / place).write_bytes(path.read_bytes())

    def pull(self, folder: str, into: Path) -> None:
        into.mkdir(parents=True, exist_ok=True)
        for path in Path(folder).iterdir():
            (into / path.name).write_bytes(path.read_bytes())

    def system_log(self) -> str:
        return ""
