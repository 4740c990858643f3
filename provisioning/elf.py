"""Read ELF files with pyelftools: the facts that a loader, or a reviewer of libraries, needs, and whether the
loader of a target takes the file; and what this machine's loader finds for a library.

Facts come from the headers and the dynamic segment, never from sections, which loaders do not read.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from provisioning.base.commands import capture
from provisioning.base.errors import CheckFailed, ToolkitError
from provisioning.base.files import open_regular

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile


def highest_version(names: Iterable[str], family: str) -> str | None:
    """The highest number of `GLIBC`, `GLIBCXX` or `CXXABI`, as `2.34`.

    Private versions such as GLIBC_PRIVATE are no numbers and have no order: compare them by name.
    """
    begins = f"{family}_"
    numbers = [name.removeprefix(begins) for name in names if name.startswith(begins)]
    versions = (number for number in numbers if number.replace(".", "").isdecimal())
    return max(versions, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


MAGIC = b"\x7fELF"
HEXAGON, X86_64, AARCH64 = "EM_QDSP6", "EM_X86_64", "EM_AARCH64"
_NAMES = {X86_64: "x86-64", AARCH64: "AArch64", HEXAGON: "Hexagon", "EM_386": "x86"}
LINKER_SCRIPT = "it is a linker script"
# Only the beginning is read, and a comment may be longer. A library never begins with a comment.
_SCRIPT = re.compile(rb"\s*(?:/\*|(?:INPUT|GROUP|OUTPUT_FORMAT)\b)", re.IGNORECASE)

_DF_TEXTREL, _PF_X, _PF_W, _VER_FLG_WEAK = 0x4, 0x1, 0x2, 0x2
_WITHOUT_BYTES = (0, 8)
"""The kinds of section that have no bytes in the file: none, and zeros."""
_LONG_ANDROID_NOTE = 4 + 64 + 64
_STACK_EXECUTABLE_UNLESS_STATED = frozenset({X86_64, AARCH64, "EM_386", "EM_ARM"})


class NotElf(CheckFailed):
    """The file is something else; `reason` says what it looks like."""

    kind = "not an ELF file"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {self.kind}: {reason}")
        self.reason = reason


class BrokenElf(NotElf):
    """The file begins as ELF and cannot be one; `reason` says where it breaks."""

    kind = "a damaged ELF file"


@dataclass(frozen=True, slots=True)
class Elf:
    """The facts about one file that a loader, or a reviewer of libraries, needs."""

    bits: int
    machine: str
    """The name of e_machine: `EM_X86_64`, `EM_AARCH64`, `EM_QDSP6`; `EM_77` for one without a name here."""
    flags: int
    fixed: bool = False
    """Whether it is a program for one address (ET_EXEC), which no loader takes for a library."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    interpreter: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    """Symbol versions that must be provided: (library, version), `("libc.so.6", "GLIBC_2.34")`."""
    alignments: tuple[int, ...] = ()
    """p_align of each PT_LOAD."""
    textrel: bool = False
    execstack: bool = False
    """Whether loading it makes the stack executable: it requests that, or has no PT_GNU_STACK."""
    states_stack: bool = True
    """Whether it has PT_GNU_STACK; loaders of x86-64 and AArch64 make the stack executable if it has none."""
    writable_code: bool = False
    """Whether a segment of it is both written to and executed."""
    beyond_end: str = ""
    """Sections or their headers outside the file: `they end at byte 4489792 of 1048576`. Loaders do not read
    them."""
    android_api: int | None = None
    ndk: tuple[str, str] | None = None
    """The NDK's release and build number, of the Android note: `("r27d", "13750724")`."""
    gnu_build_id: str = ""
    """The build id in hexadecimal digits, when the linker wrote one."""

    @property
    def arch(self) -> int | None:
        return hexagon_arch(self.flags) if self.machine == HEXAGON else None

    @property
    def machine_name(self) -> str:
        return _NAMES.get(self.machine, self.machine.removeprefix("EM_"))


def hexagon_arch(flags: int) -> int | None:
    """75 for V75, by e_flags; None when they name none."""
    digits = f"{flags & 0x3FF:x}"
    return int(digits) if digits.isdecimal() and digits != "0" else None


def read(path: Path) -> Elf:
    """Raises NotElf or BrokenElf for bad content, OSError for what cannot be opened, nothing else."""
    with open_regular(path) as stream:
        return read_stream(stream, path)


def read_stream(stream: BinaryIO, path: Path) -> Elf:
    """Read a file that is open, as `read` does; `path` only names the file in errors."""
    head = stream.read(256)
    if not head:
        raise NotElf(path, "it is empty")
    if head[:4] != MAGIC:
        raise NotElf(path, LINKER_SCRIPT if _SCRIPT.match(head) else f"it begins with {head[:20]!r}")
    try:
        return _facts(stream)
    except Exception as damage:
        # pyelftools checks little: on numbers that contradict each other it fails in any way, and looks at
        # places that no file can have.
        if isinstance(damage, OSError) and damage.errno != errno.EINVAL:
            raise
        if isinstance(damage, ToolkitError):
            # The time for all that a command reads is over.
            raise
        raise BrokenElf(path, (str(damage) or type(damage).__name__)[:200]) from None


def _facts(stream: BinaryIO) -> Elf:
    from elftools.construct import Container
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection
    from elftools.elf.sections import StringTableSection

    size = stream.seek(0, os.SEEK_END)
    file = ELFFile(stream)
    header = file.header
    sections_end = _sections_end(stream, file) if header.e_shoff else 0
    # pyelftools would look for names in them.
    header.e_shoff = 0
    machine = header.e_machine if isinstance(header.e_machine, str) else f"EM_{header.e_machine}"
    segments = list(file.iter_segments())
    loads = [segment for segment in segments if segment["p_type"] == "PT_LOAD"]
    if (end := max((load["p_offset"] + load["p_filesz"] for load in loads), default=0)) > size:
        raise ValueError(f"a segment ends at byte {end} of {size}")
    of_type: dict[str, Any] = {segment["p_type"]: segment for segment in reversed(segments)}
    stack, interpreter, dynamic = map(of_type.get, ("PT_GNU_STACK", "PT_INTERP", "PT_DYNAMIC"))
    tags = list(dynamic.iter_tags()) if dynamic else []
    numbers = {tag.entry.d_tag: tag.entry.d_val for tag in reversed(tags)}

    def texts(name: str) -> tuple[str, ...]:
        return tuple(getattr(tag, name) for tag in tags if hasattr(tag, name))

    def table(kind_of: Any, tag: str, *names: StringTableSection) -> Any:
        """Open a table as the kind of section that pyelftools takes it for."""
        _, offset = dynamic.get_table_offset(tag) if dynamic else (None, None)
        if offset is None:
            raise ValueError(f"{tag} is in no loaded segment")
        count = numbers.get(f"{tag}NUM", 0)
        place = Container(sh_offset=offset, sh_info=count, sh_flags=0, sh_size=0, sh_addralign=0)
        return kind_of(place, "", file, *names)

    names = [table(StringTableSection, "DT_STRTAB")] if tags else []
    needs = table(GNUVerNeedSection, "DT_VERNEED", *names).iter_versions() if "DT_VERNEED" in numbers else ()

    return Elf(
        bits=file.elfclass,
        machine=machine,
        flags=header.e_flags,
        fixed=header.e_type == "ET_EXEC",
        soname=(*texts("soname"), "")[0],
        needed=texts("needed"),
        rpath=tuple(part for text in texts("rpath") if text for part in text.split(":")),
        runpath=tuple(part for text in texts("runpath") if text for part in text.split(":")),
        interpreter=interpreter.get_interp_name() if interpreter else "",
        versions=tuple(
            (str(library.name), version.name)
            for library, versions in needs
            for version in versions
            if not version["vna_flags"] & _VER_FLG_WEAK
        ),
        alignments=tuple(load["p_align"] for load in loads),
        textrel="DT_TEXTREL" in numbers or bool(numbers.get("DT_FLAGS", 0) & _DF_TEXTREL),
        execstack=bool(stack["p_flags"] & _PF_X) if stack else machine in _STACK_EXECUTABLE_UNLESS_STATED,
        states_stack=stack is not None,
        writable_code=any(load["p_flags"] & (_PF_X | _PF_W) == _PF_X | _PF_W for load in loads),
        beyond_end=f"they end at byte {sections_end} of {size}" if sections_end > size else "",
        **_notes(file, segments),
    )


def _sections_end(stream: BinaryIO, file: ELFFile) -> int:
    """Where the last of the section headers, and of the sections that have bytes in the file, ends."""
    header = file.header
    end: int = header.e_shoff + header.e_shnum * header.e_shentsize
    words = "4xI16xQQ" if file.elfclass == 64 else "4xI8xII"
    form = struct.Struct(("<" if file.little_endian else ">") + words)
    stream.seek(header.e_shoff)
    table = stream.read(header.e_shnum * header.e_shentsize)
    for at in range(0, len(table) - form.size + 1, max(header.e_shentsize, form.size)):
        kind, offset, size = form.unpack_from(table, at)
        if kind not in _WITHOUT_BYTES:
            end = max(end, offset + size)
    return end


def _notes(file: ELFFile, segments: Iterable[Any]) -> dict[str, Any]:
    """The first of each kind counts."""
    facts: dict[str, Any] = {}
    for note in (n for segment in segments if segment["p_type"] == "PT_NOTE" for n in segment.iter_notes()):
        content = note.n_descdata
        if note.n_name == "Android" and len(content) >= 4 and "android_api" not in facts:
            facts["android_api"] = int.from_bytes(content[:4], "little" if file.little_endian else "big")
            # Two texts of 64 bytes after the API level; notes of old NDKs end with the level.
            if len(content) >= _LONG_ANDROID_NOTE:
                release, build = (content[at : at + 64].partition(b"\0")[0].decode() for at in (4, 68))
                facts["ndk"] = release, build
        elif note.n_name == "GNU" and note.n_type == "NT_GNU_BUILD_ID":
            facts.setdefault("gnu_build_id", content.hex())
    return facts


_GLIBC_OF = {"GLIBC_ABI_DT_RELR": "2.36"}
"""The first glibc that has a symbol version without a number."""


class Wrong(str, enum.Enum):
    """What can be wrong with a file: `validate` has a rule for each, builds have a fix."""

    MACHINE = "machine"
    PAGE_SIZE = "page-size"
    RELOCATIONS = "relocations"
    STACK = "stack"
    SEARCH_PATH = "search-path"
    GLIBC = "glibc"
    ANDROID_API = "android-api"


@dataclass(frozen=True, slots=True)
class Demands:
    """A target's demands on every file. Fields that are left out are not checked."""

    machine: str = ""
    bits: int = 64
    glibc: str = ""
    """The newest glibc that a file may need."""
    android_api: int | None = None
    page_size: int = 0


def complaints(elf: Elf, demands: Demands) -> Iterator[tuple[Wrong, str]]:
    """Everything that is wrong, each with a message."""
    if demands.machine and (elf.bits, elf.machine) != (demands.bits, demands.machine):
        expected = Elf(bits=demands.bits, machine=demands.machine, flags=0)
        yield (
            Wrong.MACHINE,
            f"expected {expected.bits}-bit {expected.machine_name}, found {elf.bits}-bit {elf.machine_name}",
        )
    least = min(elf.alignments, default=demands.page_size)
    if least < demands.page_size:
        yield Wrong.PAGE_SIZE, f"expected segments aligned to {demands.page_size:#x}, found {least:#x}"
    if elf.textrel:
        yield Wrong.RELOCATIONS, "has text relocations: its code is changed when it is loaded"
    if elf.writable_code:
        yield Wrong.RELOCATIONS, "has code in a segment that may be written to"
    if elf.execstack:
        asks = "asks for an executable stack"
        yield (
            Wrong.STACK,
            asks if elf.states_stack else "has no PT_GNU_STACK, so its stack becomes executable",
        )
    for entry in (*elf.rpath, *elf.runpath):
        if not entry.startswith("$ORIGIN"):
            yield (
                Wrong.SEARCH_PATH,
                f"expected to search its own folder ($ORIGIN), found {entry!r}",
            )
    if demands.glibc:
        yield from _newer_glibc(elf, demands.glibc)
    if demands.android_api is not None and (elf.android_api is None or elf.android_api > demands.android_api):
        level = "none named" if elf.android_api is None else elf.android_api
        yield Wrong.ANDROID_API, f"expected Android API {demands.android_api} at most, found {level}"


def _newer_glibc(elf: Elf, newest: str) -> Iterator[tuple[Wrong, str]]:
    least = highest_version((version for _, version in elf.versions), "GLIBC") or "0"
    if version_key(least) > version_key(newest):
        yield Wrong.GLIBC, f"expected to need glibc {newest} at most, found {least}"
    for name in sorted({version for _, version in elf.versions if version.startswith("GLIBC_")}):
        if name[len("GLIBC_") :].replace(".", "").isdecimal():
            continue
        first = _GLIBC_OF.get(name)
        if first is None or version_key(first) > version_key(newest):
            yield (
                Wrong.GLIBC,
                f"expected to need glibc {newest} at most, found {name}",
            )


# What glibc's loader finds for a library and what it misses, by its own word. It maps a library and all that
# this needs, prints what it did, and runs none of their code.


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

    files: frozenset[Path] = frozenset()
    gaps: tuple[str, ...] = ()
    """Names of libraries."""
    versions: tuple[LackingVersion, ...] = ()
    failure: str = ""
    """Why it gave up, where that is something else."""


def load(library: Path, library_path: str) -> Loading:
    environ = {"LD_TRACE_LOADED_OBJECTS": "1", "LC_ALL": "C"}
    environ |= {"LD_LIBRARY_PATH": library_path} if library_path else {}
    process = capture([LOADER, library], env=environ)
    gaps = tuple(dict.fromkeys(_MISSING.findall(process.stdout)))
    versions = tuple(
        LackingVersion(_plain(user), version, _plain(provider.rpartition(": ")[2]))
        for provider, version, user in _VERSION.findall(process.stderr)
    )
    failure = ""
    if process.returncode and not gaps and not versions:
        failure = process.stderr.strip().rpartition("\n")[2] or f"it ended with status {process.returncode}"
    files = frozenset(_plain(file) for file in _FOUND.findall(process.stdout))
    return Loading(files, gaps, versions, failure)


def load_all(libraries: Mapping[Path, Elf], library_path: str) -> dict[Path, Loading]:
    """Open those that no other one needs. What these load is not opened by itself, where it would not find
    what another one's RPATH names; of libraries that only need each other each is opened."""
    if not LOADER.is_file():
        return {}
    names = {
        name for path, elf in libraries.items() for name in elf.needed if name != (elf.soname or path.name)
    }
    loadings: dict[Path, Loading] = {}
    files: set[Path] = set()
    for path in sorted(libraries, key=lambda path: bool({path.name, libraries[path].soname} & names)):
        if _plain(path) not in files:
            loadings[path] = load(path, library_path)
            files |= loadings[path].files
    return loadings


def _plain(path: str | Path) -> Path:
    return Path(os.path.normpath(path))
