"""The search of ld.so, on files small enough to see through."""

from __future__ import annotations

from pathlib import Path

from provisioning import elf
from provisioning.elf import Elf
from provisioning.loader_search import Missing, SystemLibraries, read_cache, unresolved
from tests.support.elves import AARCH64, Library


def write(base: Path, place: str, **facts: object) -> Path:
    return Library(**{"soname": Path(place).name, **facts}).write(base / place)  # type: ignore[arg-type]


def read_or_none(path: Path) -> Elf | None:
    try:
        return elf.read(path)
    except (elf.NotElf, OSError):
        return None


def search(
    *paths: Path, library_path: str = "", system: SystemLibraries | None = None
) -> list[tuple[str, str]]:
    """(library, what it lacks) for these libraries."""
    return [(gap.library.name, gap.needed) for gap in gaps(*paths, library_path=library_path, system=system)]


def gaps(*paths: Path, library_path: str = "", system: SystemLibraries | None = None) -> list[Missing]:
    return unresolved(
        {path: elf.read(path) for path in paths},
        library_path=library_path,
        system=system or SystemLibraries(),
        read=read_or_none,
    )


def test_the_search_goes_on_behind_a_file_of_another_machine(tmp_path: Path) -> None:
    write(tmp_path, "one/libb.so", machine=AARCH64)
    write(tmp_path, "two/libb.so")
    a = write(tmp_path, "liba.so", needed=("libb.so",))
    assert search(a, library_path=f"{tmp_path}/one:{tmp_path}/two") == []


def test_the_cache_and_the_default_directories_are_searched(tmp_path: Path) -> None:
    system = SystemLibraries({"libb.so": (write(tmp_path, "k/libb.so"),)}, (tmp_path / "usr",))
    write(tmp_path, "usr/libc.so")
    assert search(write(tmp_path, "liba.so", needed=("libb.so", "libc.so")), system=system) == []


def test_a_name_that_is_loaded_already_is_not_looked_for(tmp_path: Path) -> None:
    a = write(tmp_path, "liba.so", needed=("libb.so", "libc.so"), runpath="$ORIGIN")
    b = write(tmp_path, "libb.so", needed=("libc.so",))
    c = write(tmp_path, "libc.so")
    # On its own libb.so would not find libc.so; opened through liba.so it waits in the queue behind it.
    assert search(a, b, c) == []


def test_the_loaders_cache_has_the_files_of_a_name() -> None:
    assert any(file.is_file() for file in read_cache()["libc.so.6"])
