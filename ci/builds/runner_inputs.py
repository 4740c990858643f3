"""The files that a build of the runner read. With its plan, they decide whether it is built again."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from ci.builds.programs import BuildTool
from ci.engine.watch import Touched, listing_of, stamp_of

LINKED = "linked.d"
"""The linker's list of the files that it read, below the build tree; CMakeLists.txt requests it."""

OWN_CODE = ("cmake.py", "emulator_runner.py", "output_folders.py", "programs.py", "runner_inputs.py")


def inputs_of(
    tree: Path, ninja: BuildTool, compiler: BuildTool, folders: Sequence[Path], started: float
) -> Touched:
    """Everything that the build in `tree` read. New files in one of `folders` are a change too."""
    touched = Touched()
    named = (tree / name for name in _files(tree, ninja, compiler, touched.unseen))
    # Without `..`. A link at a path's end stays, so that re-pointing it is a change.
    for path in sorted({path.parent.resolve() / path.name for path in named}):
        try:
            stamp = stamp_of(path.stat())
        except OSError as error:
            touched.unseen.append(f"{path}: {error.strerror}")
            continue
        touched.opened[str(path)] = stamp
        if not path.is_relative_to(tree) and changed_since(path, started):
            touched.unseen.append(f"{path} changed while it was built")
    touched.listed |= {str(folder): listing_of(str(folder)) for folder in folders}
    return touched


def changed_since(path: Path, started: float) -> bool:
    """Whether a file may have other content than at that time. An installer that shares its file with another
    environment by a hard link changes nothing."""
    _, modified, changed, *_ = stamp_of(path.stat())
    if max(modified, changed) / 1e9 <= started:
        return False
    return modified / 1e9 > started or not _is_as_installed(path)


def _is_as_installed(path: Path) -> bool:
    """Whether the file has the bytes that its distribution's RECORD names."""
    # A library's path can lead through another package: numpy/_core/../../numpy.libs/x.so.
    folder, mark, relative = os.path.normpath(path).rpartition("/site-packages/")
    recorded = _recorded(Path(f"{folder}{mark}")).get(relative) if mark else None
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
    return recorded == digest


@cache
def _recorded(site: Path) -> Mapping[str, str]:
    """The digests of all files that distributions brought, by path below the folder."""
    lines = (
        line.partition(",sha256=")
        for record in site.glob("*.dist-info/RECORD")
        for line in record.read_text(encoding="utf-8", errors="replace").splitlines()
    )
    return {name: rest.partition(",")[0] for name, digest, rest in lines if digest}


def _files(tree: Path, ninja: BuildTool, compiler: BuildTool, unseen: list[str]) -> Iterator[str]:
    yield from (str(Path(__file__).parent / name) for name in OWN_CODE)
    yield from _tools(compiler)
    # Sources and headers, by the compiler's own lists.
    for line in _run([str(ninja.path), "-C", str(tree), "-t", "deps"], unseen):
        if line.startswith("    "):
            yield line.strip()
    # CMake's files, as CMake listed them for Ninja.
    for line in _run([str(ninja.path), "-C", str(tree), "-t", "query", "build.ninja"], unseen):
        if line.startswith("    | "):
            yield line.removeprefix("    | ")
    try:
        text = (tree / LINKED).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        unseen.append("this linker does not list what it reads")
        return
    # One file a line after the target's; some linkers escape spaces.
    for line in text.partition("\n\n")[0].splitlines()[1:]:
        yield re.sub(r"\\(.)", r"\1", line.strip().removesuffix("\\").strip()).replace("$$", "$")


def _tools(compiler: BuildTool) -> Iterator[str]:
    """The compiler's own programs: two may differ though they have the same version."""
    yield os.path.realpath(compiler.path)
    for name in ("cc1plus", "as", "ld", "collect2", "ar", "strip"):
        for path in _run([str(compiler.path), f"-print-prog-name={name}"], []):
            # A name without a folder is looked up on PATH by the compiler too.
            if program := shutil.which(path):
                yield os.path.realpath(program)


def _run(command: list[str], unseen: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=False)
    if done.returncode != 0:
        unseen.append(f"{command[0]} does not say what was read: {done.stderr.strip()[-200:]}")
    return done.stdout.splitlines()
