"""`validate` as it is typed: what it prints, writes and returns, and which rules it chooses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.builds.built_files import FIXES
from provisioning.base.errors import UsageError
from provisioning.base.findings import Finding, Report, Severity
from provisioning.elf import Wrong
from provisioning.validation import Ignore, catalogue, libraries, without_ignored
from provisioning.verbs import validate
from tests.support.elves import Library
from tests.support.environments import ANDROID, PROFILE, X86, write_ndk, write_sdk
from tests.support.typed import run_here


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own SDK, named by QNN_SDK_ROOT; a store and reports of the test's own."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    root = write_sdk(tmp_path / "sdk")
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))
    monkeypatch.setenv("ANDROID_NDK_ROOT", str(write_ndk(tmp_path / "ndk")))
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
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


def finding(rule_: str, subject: str) -> Finding:
    return Finding(rule_, Severity.ERROR, subject, "is wrong", "mend it")


FOUND = [
    finding("elf-machine", "lib/a/libX.so"),
    finding("elf-machine", "lib/b/libX.so"),
    finding("host-os", "h"),
]


@pytest.mark.parametrize(
    ("ignore", "remaining"),
    [
        ("elf-machine", ["h"]),
        ("elf-machine:lib/a/*", ["lib/b/libX.so", "h"]),
        ("elf-machine:*/libX.so", ["h"]),
        ("host-os:h", ["lib/a/libX.so", "lib/b/libX.so"]),
    ],
)
def test_an_ignore_takes_away_what_it_fits(ignore: str, remaining: list[str]) -> None:
    kept, ignored = without_ignored(FOUND, [Ignore.parse(ignore)])
    assert ([f.subject for f in kept], len(ignored)) == (remaining, len(FOUND) - len(remaining))


@pytest.mark.parametrize("ignore", ["elf-machine:lib/c/*", "elf-readable"])
def test_an_ignore_that_fits_nothing_is_refused(ignore: str) -> None:
    with pytest.raises(UsageError, match=f"--ignore {re.escape(ignore)}"):
        without_ignored(FOUND, [Ignore.parse("host-os"), Ignore.parse(ignore)])


def test_several_targets_and_chips_are_checked_together(sdk: Path, tmp_path: Path) -> None:
    (sdk / "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so").unlink()
    (sdk / "lib" / ANDROID / "libQnnSystem.so").unlink()
    flags = ["--target", "x86_64-linux", "--target", "aarch64-android", "--soc", "SM8650", "--soc", "SM8850"]
    assert run("--rule", "required-libraries", "--rule", "soc-libraries", *flags) == 1
    assert [f.subject for f in report_in(tmp_path).findings] == [
        "lib/aarch64-android",
        "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so",
    ]
