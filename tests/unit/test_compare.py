"""An upgrade's losses are found, and what differs within the tolerances is no loss."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.pipeline.baseline import load_tolerances
from ci.upgrades import releases
from ci.upgrades.compare import verb
from ci.upgrades.compare.bisect import bisect, first_change
from ci.upgrades.compare.judge import differences, severity_of, verdict_of
from ci.upgrades.compare.stage import (
    ComparedBuilds,
    Measurement,
    Stack,
    chosen,
    error_of,
    in_range,
    judge,
    measure,
    stacks,
)
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here

ROW: dict[str, Any] = {
    "verdict": "pass",
    "figures": {"sqnr_db": 40.0, "reference_sqnr_db": 60.0, "top1": 0.75},
    "costs": {"context_bytes": 1_000_000, "ddr_read": 500_000, "cpu_seconds": 1.0},
    "graphs": 1,
}


def row(**changes: Any) -> dict[str, Any]:
    """`ROW` with these figures, costs or other values."""
    changed = {key: dict(value) if isinstance(value, dict) else value for key, value in ROW.items()}
    for key, value in changes.items():
        group = next((name for name in ("figures", "costs") if key in ROW[name]), None)
        if group:
            changed[group][key] = value
        else:
            changed[key] = value
    return changed


REFUSED: dict[str, Any] = {"verdict": "fail", "error": "no kernel for Erf"}


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (row(), "same"),
        (row(sqnr_db=39.1, context_bytes=1_040_000), "same"),
        (row(sqnr_db=38.0), "worse"),
        (row(sqnr_db=42.0), "better"),
        (row(reference_sqnr_db=20.0), "worse"),
        (row(context_bytes=1_200_000), "worse"),
        (row(ddr_read=300_000), "better"),
        (row(cpu_seconds=5.0), "same"),
        (row(cpu_seconds=50.0), "worse"),
        (row(graphs=3), "worse"),
        (row(top1=0.5), "worse"),
        (row(error="the reloaded context gives other outputs", ddr_read=300_000), "worse"),
        (REFUSED, "worse"),
    ],
)
def test_what_became_worse_is_told_from_what_stays_within_the_tolerances(
    after: dict[str, Any], verdict: str
) -> None:
    assert verdict_of(differences(ROW, after, load_tolerances())) == verdict


def test_a_program_that_only_the_other_build_takes_became_better() -> None:
    assert verdict_of(differences(REFUSED, ROW, load_tolerances())) == "better"
    assert verdict_of(differences(REFUSED, REFUSED, load_tolerances())) == "same"


QNN_50, QNN_51 = (Stack(build) for build in chosen(["2.50.40", "2.51.0"]))


def choice(lane: str = "onnx", qnn: Sequence[str] = (), executorch: Sequence[str] = ()) -> ComparedBuilds:
    return ComparedBuilds(lane, tuple(qnn), tuple(executorch), None, ())


def judged(first: Stack, second: Stack) -> StageRun:
    stage = StageRun("compare", "wheels", "x86_64-linux", "nox -s compare")
    programs = {"net/fp16/SM8650": ROW, "other/u8u8/SM8650": ROW}
    lost = {"net/fp16/SM8650": REFUSED, "other/u8u8/SM8650": row(sqnr_db=45.0)}
    judge(stage, [Measurement(first, programs), Measurement(second, lost)], choice())
    return stage


def test_a_program_lost_by_an_upgrade_fails_the_stage_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = judged(QNN_50, QNN_51)
    console = capsys.readouterr().err
    assert console.index("net/fp16/SM8650") < console.index("other/u8u8/SM8650")
    assert stage.close(tmp_path) == 1
    (finding,) = stage.findings
    assert finding.subject == "net/fp16/SM8650 on QNN 2.51.0" and "no kernel for Erf" in finding.message


def test_slower_compiling_alone_is_a_warning() -> None:
    tolerances = load_tolerances()
    slower, both = row(cpu_seconds=50.0), row(cpu_seconds=50.0, sqnr_db=3.0)
    assert severity_of(differences(ROW, slower, tolerances), tolerances) is Severity.WARNING
    assert severity_of(differences(ROW, both, tolerances), tolerances) is Severity.ERROR


def test_what_an_earlier_build_lacked_is_no_loss_and_what_it_did_better_is_one(tmp_path: Path) -> None:
    stage = judged(QNN_51, QNN_50)
    assert [(finding.subject, finding.severity) for finding in stage.findings] == [
        ("net/fp16/SM8650 on QNN 2.50.40", Severity.NOTE),
        ("other/u8u8/SM8650 on QNN 2.51.0", Severity.ERROR),
    ]
    assert stage.close(tmp_path) == 1


def report(build_id: str, rule: str) -> Report:
    stage = StageRun("test_onnx", "wheels", "x86_64-linux", "nox -s test_onnx")
    stage.metrics |= {"build_id": build_id, "programs": {"net/fp16/SM8650": ROW}}
    stage.add(rule, Severity.ERROR, "net/fp16/SM8650", "it fails\nfor a reason")
    return stage.finish()


def test_what_a_lane_finds_wrong_is_an_error_of_the_program_and_a_grown_baseline_is_not() -> None:
    assert error_of("net/fp16/SM8650", report("", "onnx-reload")) == "it fails"
    assert error_of("net/fp16/SM8650", report("", "cost-unknown")) == "it fails"
    assert error_of("net/fp16/SM8650", report("", "cost-ddr-read")) == ""
    assert error_of("another/fp16/SM8650", report("", "onnx-reload")) == ""


def test_a_stack_that_ran_with_another_build_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = Selection("wheels", "x86_64-linux", "SM8650", store=tmp_path, reports=tmp_path)
    ran = report(QNN_51.build.build_id, "onnx-reload")

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        ran.write(Path(command[command.index("--reports") + 1]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("ci.upgrades.compare.stage.environment_of", lambda *arguments: {})
    monkeypatch.setattr(subprocess, "run", run)
    stage = StageRun("compare", "wheels", "x86_64-linux", "nox -s compare")
    assert measure(QNN_51, selection, choice(), {}, stage).programs
    with pytest.raises(EnvironmentLacking, match=re.escape(QNN_50.build.build_id)):
        measure(QNN_50, selection, choice(), {}, stage)


@pytest.mark.parametrize(("code", "raised"), [(2, UsageError), (3, EnvironmentLacking)])
def test_a_stage_that_measured_nothing_ends_the_comparison_as_it_ended_itself(
    code: int, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt --case is the user's error, and not the machine's."""
    selection = Selection("wheels", "x86_64-linux", "SM8650", store=tmp_path, reports=tmp_path)

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        ended = StageRun("test_onnx", "wheels", "x86_64-linux", "nox -s test_onnx")
        ended.add("usage", Severity.ERROR, "test_onnx", "--case nope matches no program", "--list")
        ended.finish(Outcome.ERROR).write(Path(command[command.index("--reports") + 1]))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr("ci.upgrades.compare.stage.environment_of", lambda *arguments: {})
    monkeypatch.setattr(subprocess, "run", run)
    stage = StageRun("compare", "wheels", "x86_64-linux", "nox -s compare")
    with pytest.raises(raised, match="--case nope"):
        measure(QNN_51, selection, choice(), {}, stage)


@pytest.mark.parametrize(
    "refused",
    [
        choice("onnx", executorch=["1.4.1", "1.5.1"]),
        choice("onnx", ["2.51.0", "2.51.0"]),
        choice("executorch", executorch=["1.4.1"]),
        choice("executorch", ["9.9"], ["1.4.1"]),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(refused: ComparedBuilds) -> None:
    with pytest.raises(UsageError):
        stacks(refused)


@pytest.mark.parametrize(
    "words",
    [
        ("--where", "--qnn", "2.51.0"),
        ("--bisect", "--accept"),
    ],
)
def test_flags_that_mean_nothing_together_are_refused(words: Sequence[str]) -> None:
    with pytest.raises(UsageError):
        run_here(verb, *words)


def test_a_process_that_would_import_another_package_is_refused(tmp_path: Path) -> None:
    def tree(version: str) -> Path:
        metadata = tmp_path / version / f"onnxruntime_qnn-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Name: onnxruntime-qnn\nVersion: {version}\n")
        return tmp_path / version

    older, newer = tree("2.6.0"), tree("2.7.0")
    environ = {"PYTHONPATH": str(newer)}
    variables = releases.first_on_path(older, "onnxruntime-qnn", "2.6.0", environ)
    assert variables["PYTHONPATH"].startswith(str(older))
    with pytest.raises(EnvironmentLacking, match=r"2\.6\.0.*2\.7\.0"):
        releases.first_on_path(tmp_path / "empty", "onnxruntime-qnn", "2.6.0", environ)


@pytest.mark.parametrize("first", range(1, 9))
def test_the_first_version_that_differs_is_found_by_few_measurements(first: int) -> None:
    asked = list[int]()

    def differs(place: int) -> bool:
        asked.append(place)
        return place >= first

    assert first_change(9, differs) == first
    assert len(asked) == len({*asked}) <= 5


@pytest.mark.parametrize("wrong", [{1, 2, 3}, {2}, {3}])
def test_a_fault_that_the_last_version_has_no_more_is_found_too(wrong: set[int]) -> None:
    """A Llama layer is right on QNN 2.47 and 2.51, and wrong on those between."""
    assert first_change(5, wrong.__contains__) == min(wrong)


def test_where_nothing_differs_there_is_no_first() -> None:
    assert first_change(5, lambda place: False) is None and first_change(2, lambda place: False) is None


def test_a_range_has_the_known_versions_between_its_ends() -> None:
    known = ["2.51.0", "2.50.40", "2.49.40", "2.47.0"]
    assert in_range(["2.47..2.50"], known, "--qnn") == ["2.50.40", "2.49.40", "2.47.0"]
    assert in_range(["2.51.0"], known, "--qnn") == ["2.51.0"]
    for name in ("3..4", "2.47..x"):
        with pytest.raises(UsageError):
            in_range([name], known, "--qnn")


def bisected(folder: Path, rows: dict[str, dict[str, Any]]) -> tuple[int, Report]:
    """`--bisect` over the builds of these rows."""

    def measured(stack: Stack, *rest: object) -> Measurement:
        return Measurement(stack, {"net/16a8w/SM8650": rows[stack.name]})

    selection = Selection("wheels", "x86_64-linux", "SM8650", store=folder, reports=folder)
    code = bisect(selection, choice(qnn=[*rows]), {}, where=False, by=measured)
    return code, Report.read(folder / "compare.json")


def test_the_build_from_which_on_a_program_is_worse_is_named_with_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last build is right again, and costs differ everywhere."""
    wrong, small = row(sqnr_db=15.5), row(context_bytes=500_000)
    rows = {"2.47.0": row(), "2.48.40": wrong, "2.49.40": wrong, "2.50.40": wrong, "2.51.0": small}
    code, report = bisected(tmp_path, rows)
    assert code == 1 and "QNN 2.48.40" in capsys.readouterr().out
    assert report.metrics["bisect"] == {
        "order": [*rows],
        "measured": ["2.47.0", "2.48.40", "2.49.40", "2.51.0"],
        "first": "2.48.40",
    }
    assert [finding.rule for finding in report.findings] == ["compare-worse"]


def test_builds_that_are_alike_have_no_first_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = bisected(tmp_path, {"2.49.40": row(), "2.51.0": row()})
    assert code == 0 and "none differs" in capsys.readouterr().out
    assert not report.findings
