"""What glibc's loader finds for a library, and what it misses, by its own word.

It maps a library and all that this needs, prints what it did, and runs none of their code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.commands import captured
from provisioning.elf import Elf

LOADER = Path("/lib64/ld-linux-x86-64.so.2")
_FOUND = re.compile(r"^\t.+ => (/.+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_MISSING = re.compile(r"^\t(.+) => not found$", re.MULTILINE)
_VERSION = re.compile(r"(\S.*): version `(.+)' not found \(required by (.+)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LackingVersion:
    """A symbol version that `library` needs and `provider`, a file, does not define."""

    library: Path
    version: str
    provider: Path


@dataclass(frozen=True, slots=True)
class Loading:
    """What the loader says as it opens one library in a new process."""

    found: frozenset[Path] = frozenset()
    missing: tuple[str, ...] = ()
    """Names of libraries."""
    versions: tuple[LackingVersion, ...] = ()
    failure: str = ""
    """Why it gave up, where that is something else."""


def load(library: Path, library_path: str) -> Loading:
    environ = {"LD_TRACE_LOADED_OBJECTS": "1", "LC_ALL": "C"}
    environ |= {"LD_LIBRARY_PATH": library_path} if library_path else {}
    done = captured([LOADER, library], env=environ)
    missing = tuple(dict.fromkeys(_MISSING.findall(done.stdout)))
    versions = tuple(
        LackingVersion(_plain(needing), version, _plain(provider.rpartition(": ")[2]))
        for provider, version, needing in _VERSION.findall(done.stderr)
    )
    failure = ""
    if done.returncode and not missing and not versions:
        failure = done.stderr.strip().rpartition("\n")[2] or f"it ended with status {done.returncode}"
    found = frozenset(_plain(file) for file in _FOUND.findall(done.stdout))
    return Loading(found, missing, versions, failure)


def load_all(libraries: Mapping[Path, Elf], library_path: str) -> dict[Path, Loading]:
    """Open those that no other one needs. What these load is not opened by itself, where it would not find
    what another one's RPATH names; of libraries that only need each other each is opened."""
    if not LOADER.is_file():
        return {}
    needed = {
        name for path, elf in libraries.items() for name in elf.needed if name != (elf.soname or path.name)
    }
    loaded: dict[Path, Loading] = {}
    reached: set[Path] = set()
    for path in sorted(libraries, key=lambda path: bool({path.name, libraries[path].soname} & needed)):
        if _plain(path) not in reached:
            loaded[path] = load(path, library_path)
            reached |= loaded[path].found
    return loaded


def _plain(path: str | Path) -> Path:
    return Path(os.path.normpath(path))
