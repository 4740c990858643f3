"""`validate` as it is typed: what it prints, writes and returns."""

from __future__ import annotations

import argparse
import html
from pathlib import Path

import pytest

from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.verbs import validate
from tests.support.elves import Library, skel
from tests.support.environments import ANDROID, PROFILE, X86, write_ndk, write_sdk

FILES_ONLY = ("--rule", "elf-readable", "--rule", "hexagon-arch")


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own SDK, named by QNN_SDK_ROOT; a store and reports of the test's own."""
    for name in (
        "LD_LIBRARY_PATH",
        "ADSP_LIBRARY_PATH",
        "GITHUB_ACTIONS",
        "GITHUB_STEP_SUMMARY",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("ANDROID_NDK_HOME", "ANDROID_NDK", "HEXAGON_SDK_ROOT", "EXECUTORCH_ROOT", "QNN_CI_SOC"):
        monkeypatch.delenv(name, raising=False)
    root = write_sdk(tmp_path / "sdk")
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))
    monkeypatch.setenv("ANDROID_NDK_ROOT", str(write_ndk(tmp_path / "ndk")))
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("QNN_CI_PROFILE", PROFILE)
    return root


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    validate.configure(parser)
    return validate.run(parser.parse_args(flags))


def report_in(tmp_path: Path) -> Report:
    return Report.read(tmp_path / "reports" / "validate.json")


def spoil(sdk: Path) -> None:
    skel(79).write(sdk / "lib/hexagon-v75/unsigned/libQnnHtpV79Skel.so")


def test_a_sound_sdk_passes_and_the_report_says_whose_it_is(sdk: Path, tmp_path: Path) -> None:
    assert run(*FILES_ONLY) == 0
    report = report_in(tmp_path)
    assert (report.outcome, report.findings, report.metrics["qnn-sdk"]) == (
        Outcome.PASS,
        (),
        f"{sdk} (QNN_SDK_ROOT)",
    )


def test_a_warning_fails_it_only_when_strict(sdk: Path) -> None:
    Library(soname="libX.so", runpath="/build/lib").write(sdk / "lib" / X86 / "libX.so")
    rule = ("--rule", "absolute-rpath")
    assert (run(*rule), run(*rule, "--strict")) == (0, 1)


def test_an_ignore_without_a_match_is_a_usage_error_with_a_report(sdk: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ignore hexagon-arch matches no finding"):
        run(*FILES_ONLY, "--ignore", "hexagon-arch")
    assert report_in(tmp_path).outcome is Outcome.ERROR


def test_without_an_sdk_the_environment_lacks_something_and_the_report_says_so(
    sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT")
    with pytest.raises(EnvironmentLacking, match="qnn-sdk"):
        run()
    report = report_in(tmp_path)
    assert (report.outcome, [f.severity for f in report.findings]) == (Outcome.ERROR, [Severity.ERROR])


def test_several_targets_and_chips_are_checked_together(sdk: Path, tmp_path: Path) -> None:
    (sdk / "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so").unlink()
    (sdk / "lib" / ANDROID / "libQnnSystem.so").unlink()
    flags = ["--target", "x86_64-linux", "--target", "aarch64-android", "--soc", "SM8650", "--soc", "SM8850"]
    assert run("--rule", "required-libraries", "--rule", "soc-libraries", *flags) == 1
    assert [f.subject for f in report_in(tmp_path).findings] == [
        "lib/aarch64-android",
        "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so",
    ]


def test_any_directory_can_be_checked_without_an_environment(
    sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT")
    skel(79).write(tmp_path / "package" / "libQnnHtpV75Skel.so")
    assert run("--tree", str(tmp_path / "package")) == 1
    report = report_in(tmp_path)
    assert [(f.rule, f.subject) for f in report.findings] == [("hexagon-arch", "libQnnHtpV75Skel.so")]


@pytest.mark.parametrize("format_", validate.FORMATS)
def test_every_format_shows_the_finding(format_: str, sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(sdk)
    assert run(*FILES_ONLY, "--format", format_) == 1
    assert "hexagon-arch" in html.unescape(capsys.readouterr().out)
