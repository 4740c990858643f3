"""Collect the facts about one library, for `inspect`: its machine, its QNN build, what it needs."""

from __future__ import annotations

from pathlib import Path

from provisioning import elf, qnn_libraries
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.build_ids import build_ids

ELF, PE = b"\x7fELF", b"MZ"


def kind_of(head: bytes) -> str:
    """`library` or `dll`; empty for anything else."""
    if head.startswith(ELF):
        return "library"
    return "dll" if head.startswith(PE) else ""


def facts(path: Path, kind: str) -> dict[str, object]:
    """Collect the facts about a library. Raises CheckFailed for a damaged file."""
    size = path.stat().st_size
    if kind == "dll":
        try:
            library = qnn_libraries.read_pe(path)
        except qnn_libraries.BrokenPe as error:
            message = f"{path}: expected a Windows library, found a damaged one: {error.reason}"
            raise CheckFailed(message, fix="restore the file") from error
        return {
            "what": f"Windows library for {library.machine_name}, {size:,} bytes",
            "version": library.version,
            "QNN build": list(build_ids(path)),
            "needs": [name for name in library.needed if not name.lower().startswith("api-ms-win-")],
            "Authenticode": "there is a signature, not verified here" if library.signed else "none",
        }
    header = elf.read(path)
    if header.arch is not None:
        role = "skel" if path.name.endswith("Skel.so") else "library"
        return {
            "what": f"Hexagon {role} for v{header.arch}, {size:,} bytes",
            "QNN build": list(build_ids(path)),
            "needs": list(header.needed),
            "next": session("signing", "inspect", path),
        }
    return {
        "what": f"{header.bits}-bit {header.machine_name} library, {size:,} bytes",
        "QNN build": list(build_ids(path)),
        **_android(header),
        "needs": list(header.needed),
    }


def _android(header: elf.Elf) -> dict[str, object]:
    """Return what its Android note says, as `validate` compares it."""
    if header.android_api is None:
        return {}
    release, build = header.ndk or ("not named", "")
    return {
        "Android": f"API level {header.android_api}",
        "NDK": f"{release} ({build})" if build else release,
        "pages": f"{min(header.alignments, default=0):,} bytes",
    }
