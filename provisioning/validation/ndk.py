"""Whether an Android NDK can build for Android on this machine, as far as its own files and programs tell.

With the hash of each of its files (`official-files`) nothing of this would have to be guessed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from provisioning.base.commands import ANSWER_SECONDS, interview, version_line
from provisioning.base.documents import read as read_document
from provisioning.base.files import open_regular
from provisioning.base.settings import MANIFESTS
from provisioning.components import NDK_PREBUILT, NDK_RUNTIME, NDK_TOOLCHAIN
from provisioning.elf import AARCH64
from provisioning.qnn_libraries import read

API_OF_LETTER = {b"R": 30, b"S": 31, b"T": 33, b"U": 34, b"V": 35}
"""The Android release that a version of libc.so's symbols came with: LIBC_S came with API 31."""

LIBC_VERSION = re.compile(rb"\0LIBC_([R-V])(?=\0)")
SYSROOT = NDK_PREBUILT / "sysroot/usr/lib/aarch64-linux-android"
LINKED = ("libc.so", "libdl.so", "crtbegin_dynamic.o", "crtbegin_so.o", "crtend_android.o", "crtend_so.o")
"""What every library and program for Android is linked with."""

ANDROID_NOTE = re.compile(rb"Android\0(.{4})", re.DOTALL)
"""What Android's start files say of their API level."""

PROGRAM = '#include <stdio.h>\nint main(void) { return printf("built\\n") < 0; }\n'

CLANG_VERSION = re.compile(r"\bclang version (\d+(?:\.\d+)*)")
BLOCKS = (("if", "endif"), ("foreach", "endforeach"), ("function", "endfunction"), ("macro", "endmacro"))


def android_api() -> int:
    """The Android API level that our builds are for."""
    options = read_document(MANIFESTS / "recipes" / "aarch64-android.toml")["options"]
    return int(options["ANDROID_PLATFORM"].removeprefix("android-"))


def why_unusable(ndk: Path) -> str:
    """Say why an NDK cannot build for our Android API level; empty if it can. Its compiler is run."""
    return next(_problems(ndk, android_api()), "")


def _problems(ndk: Path, api: int) -> Iterator[str]:
    prebuilt, compiler = ndk / NDK_PREBUILT, ndk / NDK_PREBUILT / "bin" / "clang++"
    if not compiler.exists():
        names = sorted(path.name for path in prebuilt.parent.glob("*") if path.name != prebuilt.name)
        yield f"has no {compiler.relative_to(ndk)}" + (f", but {', '.join(names)}" if names else "")
        return
    yield from _problems_of_toolchain_file(ndk / NDK_TOOLCHAIN)
    yield from _problems_of_compiler(compiler, ndk)
    yield from _problems_of_c_compiler(compiler.with_name("clang"), compiler, ndk)
    yield from _problems_of_linker(compiler.with_name("ld.lld"), ndk)
    yield from _problems_of_sysroot(ndk, api)
    yield from _problems_of_object(ndk / NDK_PREBUILT / NDK_RUNTIME, ndk)
    yield from _problems_of_a_program(compiler, ndk, api)


def _problems_of_toolchain_file(path: Path) -> Iterator[str]:
    try:
        with open_regular(path) as stream:
            text = stream.read().decode()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text.strip():
        yield f"has no {NDK_TOOLCHAIN}, or an empty one, by which CMake builds for Android"
    elif "android" not in text.lower():
        yield f"{NDK_TOOLCHAIN} names no Android, for which CMake builds by it"
    code = re.sub(r"#[^\n]*", "", text).lower()
    for begin, end in BLOCKS:
        counts = [len(re.findall(rf"^\s*{word}\s*\(", code, re.MULTILINE)) for word in (begin, end)]
        if counts[0] != counts[1]:
            yield f"{NDK_TOOLCHAIN} is cut short: {counts[0]} {begin} and {counts[1]} {end}"
    if code.count("(") != code.count(")") or not text.endswith("\n"):
        yield f"{NDK_TOOLCHAIN} is cut short: it ends within a command"


def _problems_of_compiler(compiler: Path, ndk: Path) -> Iterator[str]:
    name = compiler.relative_to(ndk)
    line, silence = version_line(compiler)
    version = CLANG_VERSION.search(line)
    if not line:
        yield f"{name} does not run here: {silence}"
        return
    if version is None or not line.startswith("Android"):
        yield f"{name} is not Android's clang: it says {line[:80]!r}"
        return
    target = _answer(compiler, "--target=aarch64-linux-android30", "-dumpmachine")
    if target is None:
        yield f"{name} calls itself {line[:40]!r}, and does not know --target=aarch64-linux-android30"
    elif re.fullmatch(r"\w+(?:-\w+)+", target) and not re.fullmatch(r"aarch64\S*android\S*", target):
        yield f"{name} builds for {target} where it is asked for aarch64-linux-android30"
    resources = _answer(compiler, "-print-resource-dir") or ""
    if resources.startswith("/") and not Path(resources).resolve().is_relative_to(ndk.resolve()):
        yield f"{name} is another clang, whose files are in {resources}"
    stated = ndk / NDK_PREBUILT / "AndroidVersion.txt"
    number = stated.read_text("utf-8", "replace").split() if stated.is_file() else []
    if number and number[0] != version[1]:
        yield f"{stated.relative_to(ndk)} says {number[0]}, and {name} is {version[1]}"


def _problems_of_c_compiler(compiler: Path, other: Path, ndk: Path) -> Iterator[str]:
    """In an NDK, clang++ is the program clang by another name."""
    if not compiler.exists():
        yield f"has no {compiler.relative_to(ndk)}, which compiles C"
        return
    yield from _problems_of_compiler(compiler, ndk)
    lines = [version_line(program)[0] for program in (compiler, other)]
    if lines[0] != lines[1]:
        says = " and ".join(f"{line[:60]!r}" for line in lines)
        yield f"{compiler.relative_to(ndk)} and {other.name} are of two versions: {says}"


def _problems_of_a_program(compiler: Path, ndk: Path, api: int) -> Iterator[str]:
    """What goes wrong as a program is compiled and linked."""
    options = (f"--target=aarch64-linux-android{api}", f"--sysroot={ndk / NDK_PREBUILT / 'sysroot'}", "-w")
    with tempfile.TemporaryDirectory() as scratch:
        source, product = Path(scratch, "program.c"), Path(scratch, "program")
        source.write_text(PROGRAM, encoding="utf-8")
        linking = ("-fuse-ld=lld", "-nodefaultlibs", "-lc", "-o", product)
        try:
            process = interview([compiler, *options, "-x", "c", source, *linking], ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            yield f"{compiler.relative_to(ndk)} does not build a program within {ANSWER_SECONDS:g} s"
            return
    if process.returncode:
        words = [line for line in process.stderr.splitlines() if "error" in line] or [process.stderr[-200:]]
        yield f"{compiler.relative_to(ndk)} cannot build a program of two lines: {words[0][:200]}"


def _answer(program: Path, *arguments: str) -> str | None:
    """The first line that a program prints; None if it fails."""
    try:
        process = interview([program, *arguments], ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if process.returncode else process.stdout.strip().partition("\n")[0]


def _problems_of_linker(linker: Path, ndk: Path) -> Iterator[str]:
    if not linker.exists():
        yield f"has no {linker.relative_to(ndk)}, which links for Android"
        return
    line, silence = version_line(linker)
    if "LLD" not in line:
        yield f"{linker.relative_to(ndk)} is not LLD: {line[:80] or silence}"


def _problems_of_sysroot(ndk: Path, api: int) -> Iterator[str]:
    folder = ndk / SYSROOT / str(api)
    levels = sorted(path.name for path in (ndk / SYSROOT).glob("[0-9]*"))
    if not folder.is_dir():
        yield f"has no {folder.relative_to(ndk)}" + (f", but {', '.join(levels)}" if levels else "")
        return
    for name in LINKED:
        yield from _problems_of_object(folder / name, ndk)
    libc = folder / "libc.so"
    letters = LIBC_VERSION.findall(libc.read_bytes()) if libc.is_file() else []
    newest = max((API_OF_LETTER[letter] for letter in letters), default=0)
    if newest > api:
        yield f"{libc.relative_to(ndk)} is of API {newest}: it has symbols that API {api} lacks"
    for path in filter(Path.is_file, folder.glob("crtbegin_*.o")):
        note = ANDROID_NOTE.search(path.read_bytes())
        if note and (level := int.from_bytes(note[1], "little")) != api:
            yield f"{path.relative_to(ndk)} is of API {level}, and lies in the folder of {api}"


def _problems_of_object(path: Path, ndk: Path) -> Iterator[str]:
    """A library or object for Arm64."""
    place = path.relative_to(ndk)
    library = read(path, "")
    if library.elf is None:
        yield f"{place}: {library.unreadable}"
    elif library.elf.machine != AARCH64:
        yield f"{place}: it is for {library.elf.machine_name}"
    elif library.elf.beyond_end:
        yield f"{place} is cut short: its sections {library.elf.beyond_end}"
