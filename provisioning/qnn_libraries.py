"""The shared libraries of a tree, what each says of itself, and the tables that say which must be there.

Nothing is remembered between runs: reading the 31 libraries (422 MB) of a tree takes 0.4 s, and a record that
is out of date would be a wrong verdict."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints

from provisioning import elf as elves
from provisioning.base.commands import quote_command
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS
from provisioning.build_ids import build_ids, build_pieces, is_piece_of
from provisioning.elf import HEXAGON, LINKER_SCRIPT, X86_64, Elf, NotElf
from provisioning.manifest import Target
from provisioning.sources import Version

if TYPE_CHECKING:
    import pefile

System = Literal["host", "aarch64-android", "aarch64-linux", "aarch64-windows", "hexagon"]
LibraryName = Annotated[str, StringConstraints(pattern=r"^[\w.+{}/-]+$")]


class TargetLibraries(Model):
    directories: Annotated[tuple[str, ...], Field(min_length=1)]
    """The folders under lib/; if there are several, any one serves."""
    libraries: tuple[Annotated[tuple[LibraryName, ...], Field(min_length=1)], ...]
    """One name of each group must be in the directory."""
    soc_libraries: tuple[LibraryName, ...] = ()
    """Libraries that must be in the directory, with {arch} of the chip."""
    skels: tuple[LibraryName, ...] = ()
    """Libraries that must be under lib/, with {arch} of the chip."""
    catalogues: tuple[LibraryName, ...] = ()
    """Catalogues beside the skels, with {arch}; they sign them. Some builds have none."""


class LpaiLibraries(Model):
    since: Version
    libraries: tuple[LibraryName, ...]
    skels: tuple[LibraryName, ...]


class Directory(Model):
    match: str
    """A pattern of directories under lib/. A group named `arch` is the Hexagon arch of the files in it."""
    bits: Literal[32, 64]
    machine: str
    system: System


class LibraryTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    own: str
    """A pattern of the names of QNN's own libraries."""
    own_names: dict[LibraryName, LibraryName]
    """What QNN's libraries call themselves, where that is not the file's name."""
    targets: dict[Target, TargetLibraries]
    lpai: dict[str, LpaiLibraries]
    directories: tuple[Directory, ...]

    def target(self, name: str) -> TargetLibraries:
        return next(table for target, table in self.targets.items() if target == name)

    def requires(self, name: str) -> bool:
        """Whether any target, or LPAI, needs a library of this name, for any arch."""
        return self._required.fullmatch(name) is not None

    def other_name(self, name: str, own_name: str, *, of_qnn: bool) -> str:
        """Return what a library of QNN calls itself instead of its file's name; empty if that is as it should
        be.

        `of_qnn`: it holds a build id of QNN, whatever its name."""
        if not own_name or not (of_qnn or re.fullmatch(self.own, name)):
            return ""
        usual_name = self.own_names.get(name, name)
        return own_name if own_name.lower() != usual_name.lower() else ""

    def names_build(self, name: str) -> bool:
        """Whether libraries of this name say of which build they are, in every SDK that was seen."""
        return self._needed_by_targets.fullmatch(name) is not None

    @cached_property
    def _required(self) -> re.Pattern[str]:
        lpai = [name for table in self.lpai.values() for name in (*table.libraries, *table.skels)]
        return re.compile("|".join([self._needed_by_targets.pattern, *_patterns_for_any_arch(lpai)]))

    @cached_property
    def _needed_by_targets(self) -> re.Pattern[str]:
        names: list[str] = []
        for target in self.targets.values():
            names += [name for group in target.libraries for name in group]
            names += [*target.soc_libraries, *target.skels]
        return re.compile("|".join(_patterns_for_any_arch(names)))

    def directory(self, name: str) -> tuple[Directory, int | None] | None:
        """The row of a directory under lib/, and its Hexagon arch; None if no row fits."""
        for directory in self.directories:
            if match := re.fullmatch(directory.match, name):
                arch = match.groupdict().get("arch")
                return directory, int(arch) if arch else None
        return None


def _patterns_for_any_arch(names: Iterable[str]) -> list[str]:
    """Patterns of these file names, whatever their folder and arch."""
    return sorted({re.escape(name.rpartition("/")[2]).replace(r"\{arch\}", r"\d+") for name in names})


class DeviceSystem(Model):
    provides: tuple[LibraryName, ...]


class DeviceLibraries(Model):
    schema_: Literal[1] = Field(alias="schema")
    systems: dict[System, DeviceSystem]

    def provides(self, name: str) -> tuple[LibraryName, ...]:
        return next(table.provides for system, table in self.systems.items() if system == name)


@cache
def table() -> LibraryTable:
    return load(MANIFESTS / "libraries.toml", LibraryTable)


@cache
def device_table() -> DeviceLibraries:
    return load(MANIFESTS / "device_libraries.toml", DeviceLibraries)


# What a Windows library (PE) says of itself: its machine, its version resource, what it imports


ARM64 = 0xAA64
WINDOWS_MACHINES = {ARM64: "Arm64", 0x8664: "x86-64", 0x14C: "x86", 0xA641: "Arm64EC"}
DLL = ".dll"
_VERSION_INFO = "VS_VERSION_INFO\0".encode("utf-16-le")
_LONGEST_VERSION_INFO = 1 << 14
_EXPORT_NAME, _LONGEST_NAME = 12, 256


class BrokenPe(Exception):
    """The file is no whole PE file; `reason` says why."""

    @property
    def reason(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Pe:
    machine: int
    version: str = ""
    """The file's version, or the product's where that is the longer one: 2.49.40.260810104044."""
    needed: tuple[str, ...] = ()
    signed: bool = False
    """Whether it holds an Authenticode signature. Whether that holds is not checked."""
    own_name: str = ""
    """The name that its export directory says."""

    @property
    def machine_name(self) -> str:
        return WINDOWS_MACHINES.get(self.machine, f"machine {self.machine:#x}")


def read_pe(path: Path) -> Pe:
    """Raises BrokenPe, and OSError."""
    import pefile

    class Reader(pefile.PE):  # type: ignore[misc]
        def close(self) -> None:
            """Do nothing, because pefile would collect the garbage of the whole process."""

    size = path.stat().st_size
    if size == 0:
        raise BrokenPe("it is empty")
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            pe = Reader(data=data, fast_load=True)
            for section in pe.sections:
                end = section.PointerToRawData + section.SizeOfRawData
                if end > size:
                    raise BrokenPe(f"truncated: a section ends at byte {end} of {size}")
            security = pe.OPTIONAL_HEADER.DATA_DIRECTORY[4]
            if security.VirtualAddress + security.Size > size:
                raise BrokenPe(f"truncated: its signature ends beyond byte {size}")
            names = ("IMPORT", "DELAY_IMPORT")
            directories = [pefile.DIRECTORY_ENTRY[f"IMAGE_DIRECTORY_ENTRY_{name}"] for name in names]
            pe.parse_data_directories(directories=directories)
            imports = [
                *getattr(pe, "DIRECTORY_ENTRY_IMPORT", ()),
                *getattr(pe, "DIRECTORY_ENTRY_DELAY_IMPORT", ()),
            ]
            return Pe(
                pe.FILE_HEADER.Machine,
                _version(data),
                tuple(sorted({entry.dll.decode("ascii", "replace") for entry in imports})),
                security.Size > 0,
                _own_name(pe),
            )
    except (pefile.PEFormatError, AttributeError, IndexError) as error:
        raise BrokenPe(str(error) or type(error).__name__) from error


def _own_name(pe: pefile.PE) -> str:
    exports = pe.OPTIONAL_HEADER.DATA_DIRECTORY[0].VirtualAddress
    place = pe.get_dword_at_rva(exports + _EXPORT_NAME) if exports else None
    return pe.get_string_at_rva(place, _LONGEST_NAME).decode("ascii", "replace") if place else ""


def _version(data: mmap.mmap) -> str:
    """Read the version from the strings of the version resource, by their names: pefile reads every resource
    for them."""
    begin = data.find(_VERSION_INFO)
    strings = data[begin : begin + _LONGEST_VERSION_INFO] if begin >= 0 else b""
    versions = [_text_after(strings, name) for name in ("ProductVersion", "FileVersion")]
    return max((version for version in versions if re.fullmatch(r"[\d._]+", version)), key=len, default="")


def _text_after(strings: bytes, name: str) -> str:
    rest = strings.partition(f"{name}\0".encode("utf-16-le"))[2]
    return rest[: len(rest) & ~1].decode("utf-16-le", "replace").lstrip("\0").partition("\0")[0].strip()


# What any library says of itself


@dataclass(frozen=True, slots=True)
class Library:
    """One shared library of a tree. `elf` is None when it cannot be read as ELF; `unreadable` says why."""

    path: Path
    place: str
    """The path below the tree: `lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so`."""
    elf: Elf | None
    unreadable: str = ""
    build_ids: tuple[str, ...] = ()
    build_pieces: tuple[str, ...] = ()
    """What it says of its build where it holds no id."""
    pe: Pe | None = None
    """The facts of a Windows library, which is no ELF."""
    fix: str = ""
    """What makes it readable, where the rule's fix does not."""
    is_pipe: bool = False
    """Whether it is a named pipe, for which every loader waits without end."""

    @property
    def name(self) -> str:
        return self.path.name

    def contradicting_builds(self, build_id: str) -> list[str]:
        """Return what it says of its build that contradicts this id, which may lack its end."""
        return [build for build in self.build_ids if not build.startswith(build_id)] or [
            piece for piece in self.build_pieces if not is_piece_of(piece, build_id)
        ]

    @property
    def own_name(self) -> str:
        """The SONAME, or the name in a DLL's exports; empty if it has none."""
        return self.elf.soname if self.elf else self.pe.own_name if self.pe else ""

    @property
    def directory(self) -> str:
        """The SDK's directory under lib/, `hexagon-v75`; empty elsewhere."""
        top, name, *_ = (*self.place.split("/")[:-1], "", "")
        return name if top == "lib" and table().directory(name) else ""

    @property
    def system(self) -> System | None:
        """The operating system that loads it: by its directory, else by the file's own headers."""
        row = table().directory(self.directory)
        if row is not None:
            return row[0].system
        if self.pe is not None:
            return "aarch64-windows"
        if self.elf is None:
            return None
        if self.elf.machine == X86_64:
            return "host"
        if self.elf.machine == HEXAGON:
            return "hexagon"
        bionic = self.elf.android_api is not None or "libc.so" in self.elf.needed
        return "aarch64-android" if bionic else "aarch64-linux"


LIBRARY = re.compile(r".+\.so(?:\.\d[\w.]*)?|.+\.dll")


def read(path: Path, place: str) -> Library:
    try:
        dll = read_pe(path) if path.suffix == DLL else None
        elf = elves.read(path) if dll is None else None
        ids = build_ids(path)
        return Library(
            path, place, elf, build_ids=ids, build_pieces=() if ids else _pieces(path, dll), pe=dll
        )
    except (NotElf, BrokenPe) as error:
        return Library(path, place, None, error.reason)
    except OSError as error:
        if path.is_symlink() and not path.exists():
            return Library(path, place, None, f"a link to {path.readlink()}, which is not there")
        return _not_read(path, place, error)


def _pieces(path: Path, dll: Pe | None) -> tuple[str, ...]:
    """Read what QNN's own libraries say of their build: others have versions and dates of their own."""
    if not re.fullmatch(table().own, path.name):
        return ()
    version = ".".join(dll.version.split(".")[:3]) if dll else ""
    return build_pieces(path) or tuple(filter(None, [version]))


def libraries_in(root: Path, read: Callable[[Path, str], Library] = read) -> list[Library]:
    """Every shared library below `root`, without linker scripts and without links to others of the tree.

    A folder that cannot be read stands for the libraries in it.
    """
    errors: list[OSError] = []
    candidates = [read(path, place) for path, place in _candidates(root, errors.append)]
    for error in errors:
        folder = Path(error.filename)
        candidates.append(_not_read(folder, folder.relative_to(root).as_posix(), error))
    return sorted(
        (library for library in candidates if library.unreadable != LINKER_SCRIPT), key=lambda f: f.place
    )


def _not_read(path: Path, place: str, error: OSError) -> Library:
    fix = quote_command("chmod", "-R", "u+rX", path) if isinstance(error, PermissionError) else ""
    is_pipe = path.is_fifo()
    words = "it is a named pipe" if is_pipe else error.strerror or error
    return Library(path, place, None, f"cannot be read: {words}", fix=fix, is_pipe=is_pipe)


def _candidates(root: Path, onerror: Callable[[OSError], None]) -> Iterator[tuple[Path, str]]:
    inside = os.path.realpath(root)
    folders: set[str] = set()
    for directory, directories, names in os.walk(root, onerror=onerror, followlinks=True):
        # A link to a directory may repeat a part of the tree, form a circle, or lead to a directory that
        # contains the tree.
        real = os.path.realpath(directory)
        if real in folders or (real != inside and _within(inside, real)):
            directories.clear()
            continue
        folders.add(real)
        directories.sort()
        for name in sorted(names):
            if not LIBRARY.fullmatch(name):
                continue
            path = Path(directory, name)
            if path.is_symlink() and path.exists() and _within(os.path.realpath(path), inside):
                continue
            yield path, path.relative_to(root).as_posix()


def _within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
