"""`validate` as it is typed: what it prints, writes and returns."""

from __future__ import annotations

import argparse
import html
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

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


def test_an_error_fails_it_with_1(sdk: Path, tmp_path: Path) -> None:
    spoil(sdk)
    assert run(*FILES_ONLY) == 1
    assert [f.rule for f in report_in(tmp_path).findings] == ["hexagon-arch"]


def test_a_warning_fails_it_only_when_strict(sdk: Path) -> None:
    Library(soname="libX.so", runpath="/build/lib").write(sdk / "lib" / X86 / "libX.so")
    rule = ("--rule", "absolute-rpath")
    assert (run(*rule), run(*rule, "--strict")) == (0, 1)


def test_an_ignored_finding_does_not_fail_it_and_is_counted(sdk: Path, tmp_path: Path) -> None:
    spoil(sdk)
    assert run(*FILES_ONLY, "--ignore", "hexagon-arch:*V79Skel.so") == 0
    assert report_in(tmp_path).metrics["ignored"] == 1


def test_an_ignore_that_matches_nothing_is_wrong_use_and_leaves_a_report(sdk: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ignore hexagon-arch matches no finding"):
        run(*FILES_ONLY, "--ignore", "hexagon-arch")
    assert report_in(tmp_path).outcome is Outcome.ERROR


def test_an_unknown_rule_is_wrong_use(sdk: Path) -> None:
    with pytest.raises(UsageError, match="no rule 'hexagon'"):
        run("--rule", "hexagon")


def test_without_an_sdk_the_environment_lacks_something_and_the_report_says_so(
    sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT")
    with pytest.raises(EnvironmentLacking, match="qnn-sdk"):
        run()
    report = report_in(tmp_path)
    assert (report.outcome, [f.severity for f in report.findings]) == (Outcome.ERROR, [Severity.ERROR])


def test_every_chosen_rule_is_in_the_report_with_what_it_came_to(sdk: Path, tmp_path: Path) -> None:
    run("--rule", "elf-readable", "--rule", "lpai-libraries")
    assert report_in(tmp_path).metrics["rules"] == {
        "elf-readable": {"state": "pass", "reason": ""},
        "lpai-libraries": {
            "state": "not applicable",
            "reason": "no chosen chip has an LPAI, or no device target is chosen",
        },
    }


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


def test_a_sound_sdk_passes_as_a_tree(sdk: Path) -> None:
    rules = [flag for rule in ("elf-readable", "elf-machine", "one-build-id") for flag in ("--rule", rule)]
    assert run("--tree", str(sdk), *rules) == 0


def test_a_tree_that_is_not_there_is_wrong_use(sdk: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        run("--tree", str(tmp_path / "nowhere"))


def test_the_list_names_every_rule_and_needs_no_environment(
    sdk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from provisioning.validation import catalogue

    monkeypatch.delenv("QNN_SDK_ROOT")
    assert run("--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(catalogue())


def test_the_console_names_the_finding_its_remedy_and_the_verdict(
    sdk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(sdk)
    run(*FILES_ONLY)
    out = capsys.readouterr().out
    assert [
        text in out for text in ("✗ fail: hexagon-arch", "libQnnHtpV79Skel.so", "put the file", "FAIL")
    ] == ([True] * 4)


def test_json_is_the_report(sdk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*FILES_ONLY, "--format", "json")
    assert capsys.readouterr().out == (tmp_path / "reports" / "validate.json").read_text()


def test_junit_holds_the_failure(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(sdk)
    run(*FILES_ONLY, "--format", "junit")
    assert ElementTree.fromstring(capsys.readouterr().out).findall(".//failure") != []


def test_sarif_holds_the_catalogue_and_the_result(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(sdk)
    run(*FILES_ONLY, "--format", "sarif")
    (sarif,) = json.loads(capsys.readouterr().out)["runs"]
    assert [result["ruleId"] for result in sarif["results"]] == ["hexagon-arch"]
    texts = {rule["id"]: rule["shortDescription"]["text"] for rule in sarif["tool"]["driver"]["rules"]}
    assert texts["hexagon-arch"] == "The arch of a Hexagon library is that of its directory and of its name"


def test_annotations_are_printed_on_demand(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(sdk)
    run(*FILES_ONLY, "--format", "github")
    assert capsys.readouterr().out.startswith("::error ")


def test_markdown_is_printed_on_demand(sdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(sdk)
    run(*FILES_ONLY, "--format", "markdown")
    assert "hexagon-arch" in html.unescape(capsys.readouterr().out)


@pytest.mark.parametrize(("flags", "told"), [([], True), (["--no-annotations"], False)])
def test_on_github_it_annotates_and_summarises_unless_the_caller_does(
    flags: list[str],
    told: bool,
    sdk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(sdk)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    run(*FILES_ONLY, *flags)
    assert ("::error " in capsys.readouterr().out, (tmp_path / "summary.md").exists()) == (told, told)


def test_a_library_that_vanishes_is_no_longer_checked(sdk: Path, tmp_path: Path) -> None:
    run("--rule", "elf-readable")
    before = report_in(tmp_path).metrics["libraries"]
    shutil.rmtree(sdk / "lib" / ANDROID)
    run("--rule", "elf-readable")
    assert (before, report_in(tmp_path).metrics["libraries"]) == (18, 12)
