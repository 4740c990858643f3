"""`validate` as it is typed: what it prints, writes and returns, and which rules it chooses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.builds.built_files import FIXES
from provisioning.base.findings import Report
from provisioning.components import ELFSIGNER, NDK_TOOLCHAIN
from provisioning.elf import Wrong
from provisioning.validation import catalogue, libraries
from provisioning.verbs import validate
from tests.support.elves import Library
from tests.support.environments import ANDROID, PROFILE, X86, library, write_elfsigner, write_ndk, write_sdk
from tests.support.typed import run_here


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_places: None) -> Path:
    """The user's own SDK, named by QNN_SDK_ROOT; a store and reports of the test's own."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    root = write_sdk(tmp_path / "sdk")
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))
    monkeypatch.setenv("ANDROID_NDK_ROOT", str(write_ndk(tmp_path / "ndk")))
    monkeypatch.setenv("QNN_CI_PROFILE", PROFILE)
    return root


def run(*flags: str) -> int:
    return run_here(validate, *flags)


def report_in(tmp_path: Path) -> Report:
    return Report.read(tmp_path / "reports" / "validate.json")


def test_a_warning_fails_it_only_when_strict(sdk: Path) -> None:
    Library(soname="libX.so", runpath="/build/lib").write(sdk / "lib" / X86 / "libX.so")
    rule = ("--rule", "absolute-rpath")
    assert (run(*rule), run(*rule, "--strict")) == (0, 1)


def test_all_that_can_be_wrong_with_a_library_has_a_rule_and_a_fix_of_builds() -> None:
    assert set(libraries.RULES) == set(Wrong)
    assert set(libraries.RULES.values()) <= set(catalogue())
    assert {wrong.value for wrong in Wrong} <= set(FIXES)


def test_several_targets_and_chips_are_checked_together(sdk: Path, tmp_path: Path) -> None:
    (sdk / "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so").unlink()
    (sdk / "lib" / ANDROID / "libQnnSystem.so").unlink()
    flags = ["--target", "x86_64-linux", "--target", "aarch64-android", "--soc", "SM8650", "--soc", "SM8850"]
    assert run("--rule", "required-libraries", "--rule", "soc-libraries", *flags) == 1
    assert [f.subject for f in report_in(tmp_path).findings] == [
        "lib/aarch64-android",
        "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so",
    ]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["libQnnSystem.so", "libm.so.6"])
def test_a_named_pipe_in_the_place_of_a_library_is_named_and_not_waited_for(
    name: str, sdk: Path, tmp_path: Path
) -> None:
    place = sdk / "lib" / X86 / name
    place.unlink(missing_ok=True)
    library("libQnnHtp.so", needed=("libm.so.6",)).write(place.with_name("libQnnHtp.so"))
    os.mkfifo(place)
    rules = ("elf-readable", "needed-resolved", "symbol-versions", "compiler-answers")
    assert run(*(word for rule in rules for word in ("--rule", rule))) == 1
    assert [f.subject for f in report_in(tmp_path).findings] == [f"lib/{X86}/{name}"]


@pytest.mark.timeout(30)
def test_a_named_pipe_in_the_place_of_a_toolchain_file_is_not_waited_for(sdk: Path, tmp_path: Path) -> None:
    place = tmp_path / "ndk" / NDK_TOOLCHAIN
    place.unlink()
    os.mkfifo(place)
    assert run("--rule", "ndk-usable", "--target", "aarch64-android") == 1


def test_a_change_of_an_sdk_that_only_signing_needs_is_named(
    sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hexagon = tmp_path / "Hexagon_SDK" / "6.5.0.0"
    write_elfsigner(hexagon)
    monkeypatch.setenv("HEXAGON_SDK_ROOT", str(hexagon))
    rule = ("--rule", "own-tree", "--strict")
    assert run(*rule) == 0
    (hexagon / ELFSIGNER).write_text("print('not signed')\n")
    assert run(*rule) == 1
    assert [f.subject.startswith(str(hexagon)) for f in report_in(tmp_path).findings] == [True]
