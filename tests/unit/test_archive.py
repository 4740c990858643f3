"""What unpacking keeps, what it leaves out, and how it ends when the destination fails it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from provisioning import archive
from provisioning.base.errors import ArchiveError
from provisioning.base.settings import ROOT
from tests.support.zips import DEFLATED, PROGRAM, STORED, Item, folder, link, save, tree


def everything(name: str) -> str | None:
    return name


def unpacked(tmp_path: Path, *items: Item, **options: Any) -> dict[str, tuple[str, int, bytes]]:
    archive.extract(save(tmp_path / "a.zip", *items, **options), tmp_path / "out", everything)
    return tree(tmp_path / "out")


@pytest.mark.parametrize("most", [5, 4])
def test_as_many_bytes_and_members_are_unpacked_as_may_be_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    path = save(tmp_path / "a.zip", folder("d/"), Item("d/f", b"12"), Item("g", b"345"))
    for name, size, members in (("bytes", most, 9), ("members", 9, most - 2)):
        monkeypatch.setattr(archive, "MOST_MEMBERS", members)
        with pytest.raises(ArchiveError) if most == 4 else nullcontext():
            archive.extract(path, tmp_path / name, everything, most_bytes=size)


class TestWhatIsKept:
    def test_the_mode_whatever_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            files = unpacked(tmp_path, folder("d/"), Item("d/f", mode=PROGRAM))
        finally:
            os.umask(before)
        assert [files["d"][1], files["d/f"][1]] == [0o755, 0o755]

    def test_symbolic_links_even_when_what_they_name_is_left_out(self, tmp_path: Path) -> None:
        files = unpacked(tmp_path, link("lib/libc.so", "libc.so.1"), link("up", "lib/../lib"))
        assert files["lib/libc.so"] == ("link", 0o777, b"libc.so.1")
        assert files["up"] == ("link", 0o777, b"lib/../lib")

    @pytest.mark.parametrize("layout", ["<4s3L", "<L2Q"])
    def test_members_whose_sizes_follow_their_data(self, tmp_path: Path, layout: str) -> None:
        assert (
            unpacked(tmp_path, Item("f", b"streamed" * 99).described(layout), Item("g"))["f"][2]
            == b"streamed" * 99
        )

    def test_zip64_members_and_directory(self, tmp_path: Path) -> None:
        data = b"wide" * 50
        wide = struct.pack("<2H3Q", 1, 24, len(data), len(data), 0)
        item = Item(
            "f",
            data,
            method=STORED,
            size=0xFFFFFFFF,
            compressed_size=0xFFFFFFFF,
            offset=0xFFFFFFFF,
            extra=wide,
            local={"extra": struct.pack("<2H2Q", 1, 16, len(data), len(data))},
        )
        assert unpacked(tmp_path, item, zip64=True)["f"][2] == data


class TestWhatIsPlaced:
    def test_only_what_place_names_and_where_it_says(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.zip", Item("in/keep"), Item("in/leave"), folder("in/"))
        seen: list[str] = []

        def place(name: str) -> str | None:
            seen.append(name)
            return "else/where" if name == "in/keep" else None

        archive.extract(path, tmp_path / "out", place)
        assert set(tree(tmp_path / "out")) == {"else", "else/where"}
        assert seen == ["in/keep", "in/leave", "in/"]

    def test_a_bad_member_that_is_left_out_still_condemns_its_archive(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.zip", Item("good"), Item("../bad"))
        with pytest.raises(ArchiveError, match=r"'\.\./bad'"):
            archive.extract(path, tmp_path / "out", lambda name: name if name == "good" else None)

    def test_names_that_differ_only_by_case_are_two_files(self, tmp_path: Path) -> None:
        files = unpacked(tmp_path, Item("xt_MARK.h", b"1"), Item("xt_mark.h", b"2"))
        assert [files["xt_MARK.h"][2], files["xt_mark.h"][2]] == [b"1", b"2"]


class TestWhenTheDestinationFails:
    def test_a_file_that_is_there_already_is_not_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/f").write_text("mine")
        with pytest.raises(ArchiveError, match="'f'"):
            archive.extract(save(tmp_path / "a.zip", Item("f")), tmp_path / "out", everything)
        assert (tmp_path / "out/f").read_text() == "mine"


def peak_memory(body: str, *arguments: Path) -> int:
    """Megabytes that a new interpreter needed to run `body`."""
    # Not ru_maxrss, which a child inherits from the process that started it.
    program = f"import sys\n{body}\nprint(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return int(done.stdout) // 1024


EXTRACT = """
from pathlib import Path
from provisioning import archive
archive.extract(Path(sys.argv[1]), Path(sys.argv[2]), lambda name: name)
"""


def test_memory_stays_flat_for_a_large_member(tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    with (
        zipfile.ZipFile(tmp_path / "a.zip", "w", DEFLATED, compresslevel=1) as packed,
        packed.open("f", "w") as out,
    ):
        for _ in range(12):
            out.write(block + bytes(8 << 20))
    assert peak_memory(EXTRACT, tmp_path / "a.zip", tmp_path / "out") < 60
