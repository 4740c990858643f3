"""Which files of a tree are its libraries, and how the compiler's answer is understood."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning import elf
from provisioning.base.findings import Severity
from provisioning.qnn_libraries import libraries_in
from provisioning.validation import check, chosen
from provisioning.validation.probe import ask, understand
from tests.support.elves import Library, skel
from tests.support.environments import ANDROID, context_of

BUILD = "v2.49.40.260810104044"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    skel(75, BUILD).write(tmp_path / "tree/lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so")
    Library(soname="libQnnHtp.so").write(tmp_path / "tree/lib/x86_64-linux-clang/libQnnHtp.so")
    return tmp_path / "tree"


def places(tree: Path) -> list[str]:
    return [library.place for library in libraries_in(tree)]


def test_a_file_that_cannot_be_read_is_a_library_and_says_why(tree: Path) -> None:
    (tree / "lib/libWeb.so").write_bytes(b"<html>")
    (tree / "lib/libGone.so").symlink_to("nowhere.so")
    (tree / "lib/libScript.so").write_bytes(b"INPUT(-lc)")
    assert {f.name: f.unreadable for f in libraries_in(tree) if f.elf is None} == {
        "libWeb.so": "it is a web page",
        "libGone.so": "a link to nowhere.so, which is not there",
    }


def test_a_named_pipe_is_no_library_and_is_not_waited_for(tree: Path) -> None:
    os.mkfifo(tree / "lib/libQnnSystem.so")
    (pipe,) = (library for library in libraries_in(tree) if library.elf is None)
    assert (pipe.place, bool(pipe.unreadable)) == ("lib/libQnnSystem.so", True)
    assert elf.identity(pipe.path) is None


@contextmanager
def as_ordinary_user(folder: Path) -> Iterator[None]:
    """As the owner of the folder, for whom permissions hold, as they do not for root."""
    account = 65534 if os.geteuid() == 0 else os.geteuid()
    subprocess.run(["chown", "-R", str(account), folder], check=True)
    os.seteuid(account)
    try:
        yield
    finally:
        os.seteuid(os.getuid())


def test_a_folder_that_cannot_be_read_is_named_with_its_fix_and_not_said_to_be_missing() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        context = context_of(folder)
        # Root reads what the checks import late: this clone may be closed to the other user.
        assert check([context], chosen([]))
        with as_ordinary_user(folder):
            sdk = folder / "sdk"
            (sdk / "lib" / ANDROID).chmod(0)
            context = replace(context, libraries=tuple(libraries_in(sdk)))
            findings = [finding for result in check([context], chosen([])) for finding in result.findings]
            (error,) = (finding for finding in findings if finding.severity is not Severity.NOTE)
            assert (error.rule, error.subject) == ("elf-readable", f"lib/{ANDROID}")
            subprocess.run(error.fix, shell=True, check=True)
            assert not [library for library in libraries_in(sdk) if library.unreadable]


def test_links_within_the_tree_are_counted_once_and_links_out_of_it_are_followed(tree: Path) -> None:
    before = places(tree)
    (tree / "lib/libLink.so").symlink_to("x86_64-linux-clang/libQnnHtp.so")
    assert places(tree) == before
    (tree / "lib/libOut.so").symlink_to(Library().write(tree.parent / "outside.so"))
    assert places(tree) == sorted([*before, "lib/libOut.so"])


def test_a_linked_directory_is_followed_and_a_circle_ends(tree: Path, tmp_path: Path) -> None:
    before = places(tree)
    (tree / "lib").rename(tmp_path / "elsewhere")
    (tree / "lib").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(tree)
    assert places(tree) == before


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("liba.so", True),
        ("liba.so.1.2", True),
        ("a.sources", False),
        ("liba.so.txt", False),
        ("liba.a", False),
    ],
)
def test_libraries_are_recognised_by_their_names(name: str, counts: bool, tmp_path: Path) -> None:
    Library().write(tmp_path / name)
    assert bool(libraries_in(tmp_path)) is counts


MARK = "qnn-ci-probe: "

WRONG_PAIR = f"""\
{MARK}{{"step": "build id"}}
{MARK}{{"step": "soc", "build_id": "v2.48.40.260702151143"}}
{MARK}{{"step": "backend"}}
[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 1
[ERROR] [Qnn ExecuTorch]:  <E> Failed to set scatter gather parameters: unknown custom config socModel 0
[ERROR] [Qnn ExecuTorch]:  <E> Failed to parse platform config: 14001
[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001
E 00:00:00.066005 executorch:QnnBackendUnifiedRegistry.cpp:149] Fail to configure Qnn device
"""


def test_a_wrong_pair_keeps_the_build_id_and_qnns_error_code() -> None:
    answer = understand(WRONG_PAIR, 1, "python")
    assert (answer.made_device, answer.step, answer.build_id, answer.code) == (
        False,
        "backend",
        "v2.48.40.260702151143",
        14001,
    )


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path) -> None:
    package = tmp_path / "executorch"
    package.mkdir()
    (package / "__init__.py").write_text("import time\ntime.sleep(600)\n")
    answer = ask("SM8650", {"PYTHONPATH": str(tmp_path)}, seconds=0.3)
    assert (answer.made_device, answer.detail) == (False, "no answer within 0.3 s")
