"""What `validate` gathers: libraries of a tree, variables, and the compiler's answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.base.findings import Severity
from provisioning.base.settings import TARGETS, Selection
from provisioning.elf_damage import HOLE_IN_SEGMENT
from provisioning.environment import Environment
from provisioning.qnn_libraries import libraries_in
from provisioning.stage_variables import Root
from provisioning.validation import State, check, rules_named
from provisioning.validation.compiler_probe import ask, understand
from provisioning.validation.context import Context, gather
from tests.support.elves import Library, skel
from tests.support.environments import ANDROID, LINUX, PROFILE, X86, context_of, write_sdk

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
    (tree / "lib/libEmpty.so").touch()
    (tree / "lib/libGone.so").symlink_to("nowhere.so")
    (tree / "lib/libScript.so").write_bytes(b"INPUT(-lc)")
    assert {f.name: f.unreadable for f in libraries_in(tree) if f.elf is None} == {
        "libWeb.so": "it begins with b'<html>'",
        "libEmpty.so": "it is empty",
        "libGone.so": "a link to nowhere.so, which is not there",
    }


def test_a_named_pipe_is_no_library_and_is_not_waited_for(tree: Path) -> None:
    os.mkfifo(tree / "lib/libQnnSystem.so")
    (pipe,) = (library for library in libraries_in(tree) if library.elf is None)
    assert (pipe.place, bool(pipe.unreadable)) == ("lib/libQnnSystem.so", True)


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
        assert check([context], rules_named([]))
        with as_ordinary_user(folder):
            sdk = folder / "sdk"
            (sdk / "lib" / ANDROID).chmod(0)
            context = replace(context, libraries=tuple(libraries_in(sdk)))
            findings = [
                finding for result in check([context], rules_named([])) for finding in result.findings
            ]
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


def test_a_compiler_that_dies_of_a_program_made_a_device_and_compiles_nothing() -> None:
    created = WRONG_PAIR + '\nqnn-ci-probe: {"step": "device", "result": "ok"}\n'
    answer = understand(created + 'qnn-ci-probe: {"step": "program", "result": ""}\n', -11, "python")
    assert (answer.made_device, answer.compiles) == (True, False)
    assert (understand(created, 0, "python").made_device, understand(created, 0, "python").compiles) == (
        True,
        True,
    )


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path) -> None:
    package = tmp_path / "executorch"
    package.mkdir()
    (package / "__init__.py").write_text("import time\ntime.sleep(600)\n")
    answer = ask("SM8650", {"PYTHONPATH": str(tmp_path)}, seconds=0.3)
    assert (answer.made_device, answer.detail) == (False, "no answer within 0.3 s")


@pytest.fixture
def selection(tmp_path: Path) -> Selection:
    return Selection(PROFILE, "x86_64-linux", "SM8650", tmp_path / "store", tmp_path / "reports")


def gathered(selection: Selection, base: Path, **environ: str) -> Context:
    sdk = write_sdk(base / "sdk")
    (context,) = gather(selection, {"QNN_SDK_ROOT": str(sdk), **environ}, asks_compiler=False)
    return context


def test_the_users_variables_are_kept_beside_the_corrected_ones(selection: Selection, tmp_path: Path) -> None:
    wrong = "/opt/qairt/lib/aarch64-android"
    context = gathered(selection, tmp_path, LD_LIBRARY_PATH=wrong)
    assert context.environ["LD_LIBRARY_PATH"] == wrong
    assert context.variables["LD_LIBRARY_PATH"] == str(tmp_path / "sdk/lib/x86_64-linux-clang")


def test_what_one_of_the_targets_does_not_take_is_a_mistake_and_told_once(
    selection: Selection, tmp_path: Path
) -> None:
    several = replace(selection, named_targets=("x86_64-linux", "aarch64-linux"))
    context = gathered(several, tmp_path, ADSP_LIBRARY_PATH="/a:/b", LD_LIBRARY_PATH="/q/lib/hexagon-v75")
    (result,) = check([context], rules_named(["user-variables"]))
    assert [finding.subject for finding in result.findings] == ["LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH"]
    assert result.state is State.FAIL


@pytest.mark.parametrize(("targets", "questioned"), [(("aarch64-linux",), []), ((TARGETS[0],), ["SM8650"])])
def test_the_compiler_is_asked_unless_the_sdk_is_for_devices_alone(
    selection: Selection,
    tmp_path: Path,
    targets: tuple[str, ...],
    questioned: list[str],
) -> None:
    sdk = write_sdk(tmp_path / "device only")
    shutil.rmtree(sdk / "lib" / X86)
    chosen = replace(selection, target=targets[0], named_targets=targets)
    (context,) = gather(chosen, {"QNN_SDK_ROOT": str(sdk)})
    assert list(context.answers) == questioned


def test_a_lost_block_shows_in_a_library_that_no_target_requires(
    selection: Selection, tmp_path: Path
) -> None:
    place = f"lib/{X86}/libQnnGpu.so"
    sdk = write_sdk(tmp_path / "sdk")
    Library(soname="libQnnGpu.so", content=bytes(HOLE_IN_SEGMENT) + b"\1", writable_code=True).write(
        sdk / place
    )
    (context,) = gather(selection, {"QNN_SDK_ROOT": str(sdk)}, asks_compiler=False)
    assert list(context.damages) == [place]


def test_every_target_is_judged_against_its_own_trees(selection: Selection, tmp_path: Path) -> None:
    """Two trees, provisioned one after the other, each with the libraries of one target."""
    host, linux = write_sdk(tmp_path / "host"), write_sdk(tmp_path / "linux")
    for device in (ANDROID, LINUX):
        shutil.rmtree(host / "lib" / device)
    shutil.rmtree(linux / "lib" / X86)
    trees = {"x86_64-linux": host, "aarch64-linux": linux}

    def resolve(chosen: Selection, environ: Mapping[str, str]) -> Environment:
        root = Root(trees[chosen.target], "store", "QNN_SDK_ROOT")
        return Environment(PROFILE, chosen.target, "SM8650", {"qnn-sdk": root}, {}, (), (), ())

    rules = rules_named(["required-libraries"])
    for targets in (tuple(trees), tuple(reversed(trees))):
        contexts = gather(replace(selection, named_targets=targets), {}, asks_compiler=False, resolve=resolve)
        assert [result.findings for result in check(contexts, rules)] == [()]
    (linux / "lib" / LINUX / "libQnnHtp.so").unlink()
    both = replace(selection, named_targets=tuple(trees))
    (result,) = check(gather(both, {}, asks_compiler=False, resolve=resolve), rules)
    assert result.state is State.FAIL
    assert [f.message for f in result.findings] == [
        "lacks libQnnHtp.so, which aarch64-linux needs (for aarch64-linux)"
    ]
