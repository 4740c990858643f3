"""Small programs that stand in for real ones."""

from __future__ import annotations

from pathlib import Path


def script(path: Path, text: str, interpreter: str = "/bin/sh") -> Path:
    """A program at this path, in a folder that need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
