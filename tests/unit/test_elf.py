"""ELF files as the linker writes them, as ld.so searches them, and what they say of themselves."""

from __future__ import annotations

import io
import struct
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from provisioning import qnn_libraries
from provisioning.build_ids import build_ids
from provisioning.components import Identity, identity_of
from provisioning.elf import BrokenElf, Elf, NotElf, highest_version, load_all, read, read_stream
from provisioning.elf_damage import HOLE_IN_SECTION, HOLE_IN_SEGMENT, damaged_name, hole_in_code
from tests.support.elves import AARCH64, HEXAGON, X86_64, Library
from tests.support.windows import dll

RICH = Library(
    soname="libRich.so",
    needed=("libc.so.6", "libstdc++.so.6"),
    rpath="$ORIGIN:/opt/rich",
    runpath="$ORIGIN/../lib",
    interpreter="/lib64/ld-linux-x86-64.so.2",
    versions={"libc.so.6": ("GLIBC_2.9", "GLIBC_2.34"), "libstdc++.so.6": ("GLIBCXX_3.4.21", "CXXABI_1.3")},
    provides=("RICH_1.0", "RICH_1.2"),
    alignment=0x4000,
    android_api=30,
)


def elf_of(library: Library) -> Elf:
    return read_stream(io.BytesIO(library.encode()), Path("lib.so"))


def test_the_highest_needed_symbol_version_is_by_number_and_not_by_text() -> None:
    names = [version for _, version in elf_of(RICH).versions]
    highest = [highest_version(names, family) for family in ("GLIBC", "GLIBCXX", "CXXABI")]
    assert highest == ["2.34", "3.4.21", "1.3"]


@pytest.mark.parametrize(("flags", "arch"), [(0x68, 68), (0x8075, 75), (0x7A, None), (0, None)])
def test_the_hexagon_arch_is_in_the_low_ten_bits(flags: int, arch: int | None) -> None:
    assert elf_of(Library(machine=HEXAGON, flags=flags)).arch == arch


def test_a_file_cut_anywhere_is_never_taken_for_whole(tmp_path: Path) -> None:
    whole = RICH.encode()
    for length in range(0, len(whole), 5):
        with pytest.raises(NotElf):
            read_stream(io.BytesIO(whole[:length]), Path("lib.so"))
    path = tmp_path / "lib.so"
    path.write_bytes(whole[:-1])
    with pytest.raises(BrokenElf, match=f"{len(whole)} of {len(whole) - 1}"):
        read(path)


def test_a_library_that_lacks_the_last_byte_of_its_last_section_is_cut_short() -> None:
    content = bytearray(RICH.encode())
    table = len(content)
    # A section of names lies behind the headers, as in Hexagon's libraries.
    struct.pack_into("<Q", content, 0x28, table)
    struct.pack_into("<HHH", content, 0x3A, 64, 2, 1)
    content += bytes(64) + struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, table + 128, 6, 0, 0, 1, 0) + b"names\0"
    assert read_stream(io.BytesIO(content), Path("lib.so")).beyond_end == ""
    assert read_stream(io.BytesIO(content[:-1]), Path("lib.so")).beyond_end


def test_garbled_or_missing_sections_do_not_matter_as_loaders_do_not_read_them() -> None:
    content = bytearray(RICH.encode())
    struct.pack_into("<Q", content, 0x28, 64)
    struct.pack_into("<HHH", content, 0x3A, 64, 3, 1)
    assert read_stream(io.BytesIO(bytes(content)), Path("lib.so")) == elf_of(RICH)
    struct.pack_into("<Q", content, 0x28, len(content))
    cut = read_stream(io.BytesIO(bytes(content)), Path("lib.so"))
    assert cut.beyond_end == f"they end at byte {len(content) + 192} of {len(content)}"


@pytest.mark.parametrize("hashes", ["gnu", "sysv"])
def test_a_changed_byte_in_a_name_of_a_symbol_or_a_version_shows_by_its_hash(
    hashes: str, tmp_path: Path
) -> None:
    library = tmp_path / "lib.so"
    source = tmp_path / "lib.c"
    # Of so many names each has a place of its own among the hashes.
    source.write_text("\n".join(f"int function_{number}(void) {{ return 1; }}" for number in range(200)))
    linking = ("-shared", "-fPIC", f"-Wl,--hash-style={hashes}", "-o", str(library))
    subprocess.run(["g++", "-x", "c", str(source), *linking], check=True)
    whole = library.read_bytes()
    assert damaged_name(library) is None
    library.write_bytes(whole.replace(b"\0function_7\0", b"\0\0unction_7\0", 1))
    assert damaged_name(library) == ""
    for name in (b"\0function_7\0", b"\0function_150\0"):
        library.write_bytes(whole.replace(name, name.replace(b"u", b"U"), 1))
        assert damaged_name(library) == name.strip(b"\0").replace(b"u", b"U").decode()


@pytest.mark.parametrize(
    ("number", "is_code", "is_hole"),
    [(HOLE_IN_SEGMENT, True, True), (HOLE_IN_SEGMENT - 1, True, False), (HOLE_IN_SEGMENT, False, False)],
)
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_a_lost_block_in_code_shows(
    byte: bytes, number: int, is_code: bool, is_hole: bool, tmp_path: Path
) -> None:
    content = b"\1" + byte * number + b"\1"
    library = Library(content=content, writable_code=is_code).write(tmp_path / "lib.so")
    place = library.read_bytes().index(content) + 1
    assert (f"{place:#x}" in hole_in_code(library)) is is_hole


def test_a_smaller_lost_block_shows_in_a_section_of_code(tmp_path: Path) -> None:
    library, source = tmp_path / "lib.so", tmp_path / "lib.c"
    source.write_text("\n".join(f"int add_{n}(int x) {{ return x * {n} + {n}; }}" for n in range(99)))
    subprocess.run(["g++", "-x", "c", str(source), "-shared", "-fPIC", "-o", str(library)], check=True)
    assert hole_in_code(library) == ""
    content = bytearray(library.read_bytes())
    with library.open("rb") as stream:
        text = ELFFile(stream).get_section_by_name(".text")
        assert text is not None
        begin = text["sh_offset"]
    content[begin + 200 : begin + 200 + HOLE_IN_SECTION] = bytes(HOLE_IN_SECTION)
    library.write_bytes(content)
    assert hole_in_code(library)


@pytest.mark.parametrize(("machine", "executable"), [(X86_64, True), (AARCH64, True), (HEXAGON, False)])
def test_without_a_stated_stack_it_is_executable_where_the_loader_makes_it_so(
    machine: int, executable: bool
) -> None:
    content = bytearray(Library(machine=machine).encode())
    at = content.index(struct.pack("<I", 0x6474E551))
    struct.pack_into("<I", content, at, 0)
    elf = read_stream(io.BytesIO(bytes(content)), Path("lib.so"))
    assert (elf.execstack, elf.states_stack) == (executable, False)


@pytest.mark.parametrize(
    ("place", "content", "system"),
    [
        ("libapp.so", Library(machine=X86_64), "host"),
        ("libapp.so", Library(machine=HEXAGON), "hexagon"),
        ("libapp.so", Library(machine=AARCH64, needed=("libc.so.6",)), "aarch64-linux"),
        # Bionic's C library, or a note of its API.
        ("libapp.so", Library(machine=AARCH64, needed=("libc.so",)), "aarch64-android"),
        ("libapp.so", Library(machine=AARCH64, android_api=30), "aarch64-android"),
        ("app.dll", dll(), "aarch64-windows"),
        ("libapp.so", b"text", None),
        ("lib/aarch64-android/libapp.so", b"text", "aarch64-android"),
    ],
)
def test_a_library_is_of_the_system_that_its_directory_or_its_headers_say(
    place: str, content: Library | bytes, system: str | None, tmp_path: Path
) -> None:
    path = tmp_path / Path(place).name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert qnn_libraries.read(path, place).system == system


def write(base: Path, place: str, **facts: object) -> Path:
    return Library(**{"soname": Path(place).name, **facts}).write(base / place)  # type: ignore[arg-type]


def missing(*paths: Path, library_path: str = "") -> list[tuple[str, ...]]:
    """What the loader misses, for each of these libraries that it was asked to open."""
    return [loading.gaps for loading in load_all({path: read(path) for path in paths}, library_path).values()]


def test_the_search_goes_on_behind_a_file_of_another_machine(tmp_path: Path) -> None:
    write(tmp_path, "one/libb.so", machine=AARCH64)
    write(tmp_path, "two/libb.so")
    a = write(tmp_path, "liba.so", needed=("libb.so",))
    assert missing(a, library_path=f"{tmp_path}/one:{tmp_path}/two") == [()]
    assert missing(a, library_path=f"{tmp_path}/one") == [("libb.so",)]


@pytest.mark.parametrize(
    ("text", "identities"),
    [
        (
            "version: 2.37.0.250724\nbuild_id: v2.37.0.250724175447\n",
            ("2.37.0.250724", "v2.37.0.250724175447"),
        ),
        ("version: 'v2.40.0'  # the release\nbuild-id: \"b\"\n", ("2.40.0", "b")),
        ("versions: 3\nmy_version: 3\n", ("", "")),
        ("\0\xff version", ("", "")),
    ],
)
def test_an_sdk_is_what_its_yaml_says(tmp_path: Path, text: str, identities: tuple[str, str]) -> None:
    (tmp_path / "sdk.yaml").write_text(text, encoding="latin-1")
    assert identity_of("qnn-sdk", tmp_path) == Identity(*identities)


def test_an_ndk_is_what_its_properties_say(tmp_path: Path) -> None:
    (tmp_path / "source.properties").write_text("Pkg.Desc = NDK\nPkg.Revision = 26.2.11394342\n")
    assert identity_of("android-ndk", tmp_path) == Identity("26.2.11394342")


NEW, OLD = b"v2.49.40.260810104044", b"v2.37.0.250724175447_124859"


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        (b"", ()),
        (b"\0" + NEW + b"\0", (NEW.decode(),)),
        (NEW + b"\0" + OLD + b"\0" + NEW, (OLD.decode(), NEW.decode())),
        (b"\xff" * (3 << 20) + NEW + b"\xff" * 100, (NEW.decode(),)),
        (b"v2.49.40.26081010404", ()),
    ],
)
def test_every_distinct_build_id_is_found(content: bytes, ids: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    assert build_ids(path) == ids


def test_a_library_is_not_opened_by_itself_that_another_one_loads(tmp_path: Path) -> None:
    a = write(tmp_path, "liba.so", needed=("libb.so", "libz9.so"), runpath="$ORIGIN")
    b = write(tmp_path, "libb.so", needed=("libz9.so",))
    c = write(tmp_path, "libz9.so")
    # On its own libb.so would not find libz9.so; opened through liba.so it is loaded already.
    assert missing(a, b, c) == [()]
    assert missing(b) == [("libz9.so",)]
    one, other = (write(tmp_path, f"r/lib{name}.so", needed=(f"lib{of}.so",)) for name, of in ("xy", "yx"))
    assert missing(one, other) == [("liby.so",), ("libx.so",)]
