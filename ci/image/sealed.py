"""A folder of verified downloads, sealed by a record of its files, so that a changed file is never
installed.
"""

from __future__ import annotations

from pathlib import Path

from provisioning.base.files import hash_file, replace_text

INSTALLED = (".deb", ".gz", ".whl", ".zip")
"""These files are ours and are written each time; all others are sealed."""


def is_sealed(folder: Path, request: str) -> bool:
    """Whether the folder was filled for this request, and holds the same bytes as then."""
    try:
        return _record(folder).read_text(encoding="utf-8") == _text(folder, request)
    except FileNotFoundError:
        return False


def seal(folder: Path, request: str) -> None:
    replace_text(_record(folder), _text(folder, request))


def unseal(folder: Path) -> None:
    """Call before filling the folder again, so that an interrupted download is not taken for sealed."""
    _record(folder).unlink(missing_ok=True)


def _record(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.stamp")


def _text(folder: Path, request: str) -> str:
    files = sorted(path for path in folder.rglob("*") if path.suffix in INSTALLED)
    return "\n".join([request, *(f"{path.relative_to(folder)} {hash_file(path)}" for path in files), ""])
