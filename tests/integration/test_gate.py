"""The gate over stages that pass, fail, die, lie and hang, each a real process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ci.gate import verb as gate
from ci.gate.options import GateOptions, read_options
from ci.gate.planning import planned_stages
from ci.gate.table import GateStage
from ci.suite.options import Choice
from provisioning.base import answer
from provisioning.base.findings import Outcome, Report
from provisioning.base.rendering import verdict
from provisioning.base.settings import ROOT, Selection
from provisioning.base.stage_run import RUN, StageRun
from tests.support.gate_stage import MODULE
from tests.support.typed import parsed


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(RUN, "this one")
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "reports"
    path.mkdir()
    return path


def stage(name: str, *needs: str) -> GateStage:
    return GateStage(name=name, program=MODULE, needs=needs)


def run(reports: Path, *stages: GateStage, chosen: list[str] | None = None) -> list[gate.StageResult]:
    names = [row.name for row in stages] if chosen is None else chosen
    return gate.run_stages(stages, names, options_of(reports))


def options_of(reports: Path, choice: Choice | None = None) -> GateOptions:
    selection = Selection("wheels", "x86_64-linux", "SM8650", reports.parent / "store", reports)
    return GateOptions(selection, ("--reports", str(reports)), choice or Choice())


def run_gate(reports: Path, *stages: GateStage, whole: bool = False) -> int:
    return gate.run_gate(stages, [row.name for row in stages], options_of(reports), echo=whole)


def started(reports: Path) -> list[str]:
    log = reports / "ran"
    return log.read_text().split() if log.exists() else []


def verdicts(results: list[gate.StageResult]) -> dict[str, str]:
    return {result.report.stage: verdict(result.report) for result in results}


def test_stages_run_in_order_and_what_needs_a_failed_one_does_notrun(reports: Path) -> None:
    stages = (stage("passes"), stage("fails", "passes"), stage("passes-2", "fails"))
    results = run(reports, *stages)
    assert started(reports) == ["passes", "fails"]
    assert verdicts(results) == {"passes": "pass", "fails": "fail", "passes-2": "did not run"}
    # One that is left out holds up no other.
    again = run(reports, *stages, chosen=["passes", "passes-2"])
    assert verdicts(again) == {"passes": "pass", "fails": "skipped", "passes-2": "pass"}
    assert gate.exit_code(again) == 0


def of_lane(name: str, *needs: str, flags: tuple[str, ...] = ()) -> GateStage:
    return GateStage(name=name, program=MODULE, needs=needs, lane="toy", flags=flags)


def test_stages_of_one_lane_are_one_process_and_each_has_its_own_verdict(reports: Path) -> None:
    results = run(reports, stage("passes"), of_lane("passes-1"), of_lane("fails-2"))
    assert [log.name for log in sorted((reports / "logs").iterdir())] == ["passes-1.log", "passes.log"]
    assert [(result.report.stage, result.code) for result in results] == [
        ("passes", 0),
        ("passes-1", 0),
        ("fails-2", 1),
    ]


def test_what_stands_above_the_output_of_a_pass_is_a_gate_over_its_stages(
    reports: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    passing = [of_lane(name, flags=("--tag", "x")) for name in ("passes-1", "tells-2")]
    assert run_gate(reports, *passing, whole=True) == 0
    (heading,) = (line for line in capfd.readouterr().out.splitlines() if line.startswith("━━"))
    _, _, words = heading.partition(" gate ")
    shown = [word for word in shlex.split(words) if word != "--"]
    assert shown == [
        *("--only", "passes-1", "--only", "tells-2"),
        *("--reports", str(reports), "--tag", "x"),
    ]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("fails-1", "late-2"), {"fails-1": "fail", "late-2": "error"}),
        (("passes-1", "exits3-2"), {"passes-1": "pass", "exits3-2": "error"}),
    ],
)
def test_a_process_that_dies_takes_no_verdict_with_it_that_it_gave_before(
    reports: Path, names: tuple[str, str], found: dict[str, str]
) -> None:
    assert verdicts(run(reports, *map(of_lane, names))) == found


def test_a_stage_that_lacks_what_it_needs_leaves_the_other_of_its_lane_alone(reports: Path) -> None:
    results = run(reports, stage("fails"), of_lane("passes-1"), of_lane("passes-2", "fails"))
    assert started(reports) == ["fails", "passes-1"]
    assert verdicts(results) == {"fails": "fail", "passes-1": "pass", "passes-2": "did not run"}


def test_an_interruption_leaves_the_verdict_that_a_pass_gave_before(reports: Path) -> None:
    code, _ = _interrupted(reports, signal.SIGINT, "toy:fails-1", "toy:waits-2", "passes")
    report = json.loads((reports / "gate.json").read_text())
    words = [row["verdict"] for row in report["metrics"]["stages"]]
    assert (code, words) == (130, ["fail", "did not run", "did not run"])


def test_an_older_report_is_never_taken_for_this_runs(reports: Path) -> None:
    run(reports, stage("passes"))
    (reports / "exits1.json").write_text((reports / "passes.json").read_text().replace("passes", "exits1"))
    (result,) = run(reports, stage("exits1"))
    assert (verdict(result.report), result.code) == ("error", 3)
    assert result.report.findings[0].message.startswith("ended with exit code 1, and wrote no report\n")


@pytest.mark.parametrize(
    ("name", "rules", "message"),
    [
        ("lies", ["stage-died"], "exit code 0, and its report says fail"),
        ("odd", ["rule", "stage-died"], "exit code 9"),
        ("late", ["rule", "stage-died"], "SIGSEGV"),
        ("breaks", ["broke"], "LookupError: no such thing"),
    ],
)
def test_a_stage_that_ends_otherwise_than_its_report_says_is_an_error(
    reports: Path, name: str, rules: list[str], message: str
) -> None:
    (result,) = run(reports, stage(name))
    assert (verdict(result.report), result.code) == ("error", 3)
    assert [finding.rule for finding in result.report.findings] == rules
    assert message in result.report.findings[-1].message


@pytest.mark.parametrize(
    ("code", "outcome", "kept"),
    [
        (0, Outcome.PASS, 0),
        (1, Outcome.FAIL, 1),
        (1, Outcome.ERROR, 3),
        (3, Outcome.ERROR, 3),
        (70, Outcome.ERROR, 70),
        (70, Outcome.FAIL, 70),
    ],
)
def test_a_stage_that_says_in_its_report_what_kept_it_is_taken_at_its_exit_code(
    reports: Path, code: int, outcome: Outcome, kept: int
) -> None:
    StageRun("one", "wheels", "", "nox -s one").finish(outcome).write(reports)
    selection = Selection("wheels", "", "SM8650", reports.parent / "store", reports)
    (log := reports / "one.log").touch()
    ran = gate.judge(stage("one"), code, selection, 1.0, "nox -s one", log)
    assert (ran.code, ran.report.outcome) == (kept, Outcome.ERROR if code == 70 else outcome)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("passes", []),
        ("fails", ["gate-stage", "rule"]),
        ("late", ["gate-stage", "rule", "stage-died"]),
    ],
)
def test_an_answer_has_what_the_gate_and_its_stages_found_and_nothing_provisional(
    reports: Path, name: str, rules: list[str]
) -> None:
    place = reports / "answer.json"
    answer.write_answer("gate", [], place, lambda: run_gate(reports, stage(name)))
    found = json.loads(place.read_text())["findings"]
    assert sorted(finding["rule"] for finding in found) == rules


def test_a_reader_of_the_gate_that_left_does_not_change_its_verdict(reports: Path) -> None:
    argv = [sys.executable, "-m", MODULE, "--reports", str(reports), "gate", "tells", "fails"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code = subprocess.run(argv, cwd=ROOT, stdout=writing, stderr=writing, check=False).returncode
    finally:
        os.close(writing)
    assert code == 1
    assert Report.read(reports / "gate.json").outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((0, 0), 0),
        ((1, 4), 4),
        ((3, 2), 2),
        ((70, 130), 130),
        ((None, 1), 1),
    ],
)
def test_the_exit_code_is_the_worst_by_meaning(codes: tuple[int | None, ...], code: int) -> None:
    report = StageRun("one", "wheels", "", "nox -s one").finish()
    assert gate.exit_code(gate.StageResult(report, code) for code in codes) == code


def test_the_selection_is_passed_on_as_it_was_typed() -> None:
    typed = ["--profile", "qnn-2.37", "--target", "aarch64-android", "--target", "x86_64-linux"]
    typed += ["--soc", "SM8550", "--store", "/s", "--reports", "/r"]
    assert list(read_options(parsed(gate, *typed)).selection_words) == typed


@pytest.mark.parametrize(
    ("own", "tags", "words"),
    [
        (False, (), ["--tag", "pr"]),
        (True, ("x",), ["--tag", "x"]),
        (True, (), []),
    ],
)
def test_programs_are_those_of_a_pull_request_unless_others_are_named(
    reports: Path, own: bool, tags: tuple[str, ...], words: list[str]
) -> None:
    suite = reports.parent / "a.toml"
    suite.write_text('schema = 2\n[[case.net.run]]\nlane = "executorch"\n')
    suites = (suite,) if own else ()
    words = [*(["--suite", str(suite)] if own else []), *words]
    options = options_of(reports, Choice(suites, tags))
    with_programs = stage("tells-1").model_copy(update={"lane": "executorch"})
    stages = planned_stages([with_programs, stage("tells-2")], options)
    gate.run_gate(stages, ["tells-1", "tells-2"], options)
    logs = [(reports / f"logs/tells-{number}.log").read_text() for number in (1, 2)]
    assert f"argv={['tells-1', '--reports', str(reports), *words]}" in logs[0]
    assert f"argv={['tells-2', '--reports', str(reports)]}" in logs[1]


@pytest.mark.parametrize("whole", [False, True])
def test_a_stage_is_one_line_unless_all_of_it_is_wanted(
    whole: bool, reports: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_gate(reports, stage("tells"), stage("fails"), whole=whole) == 1
    shown = capfd.readouterr().out
    (error,) = Report.read(reports / "fails.json").findings
    assert error.rule in shown and ("argv=" in shown) == whole
    assert "argv=" in (reports / "logs/tells.log").read_text()
    assert whole or sum(line.split()[2:3] == ["tells"] for line in shown.splitlines()) == 1


def test_the_gates_report_has_a_finding_for_each_stage_that_did_not_pass(reports: Path) -> None:
    code = run_gate(reports, stage("passes"), stage("fails"), stage("passes-2", "fails"))
    report = Report.read(reports / "gate.json")
    assert (code, report.outcome) == (1, Outcome.FAIL)
    assert [finding.subject for finding in report.findings] == ["fails", "passes-2"]
    assert [artifact.path for artifact in report.artifacts if artifact.kind != "log"] == ["passes.so"]


def _interrupted(reports: Path, number: signal.Signals, *stages: str) -> tuple[int, int]:
    """Signal only the gate, once its first stage hangs; returns its exit code and the stage's pid."""
    argv = [sys.executable, "-m", MODULE, "--reports", str(reports), "gate", *stages]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid_file = reports / "pid"
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    return process.wait(60), int(pid_file.read_text())


@pytest.mark.parametrize(
    ("name", "number"),
    [("waits", signal.SIGINT), ("stubborn", signal.SIGTERM)],
)
def test_an_interrupted_gate_ends_its_stage_and_says_what_did_not_run(
    reports: Path, name: str, number: signal.Signals
) -> None:
    code, pid = _interrupted(reports, number, name, "passes")
    assert code == 128 + number
    # A process that was killed ends a moment later on a busy machine.
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    report = json.loads((reports / "gate.json").read_text())
    assert [row["verdict"] for row in report["metrics"]["stages"]] == ["did not run", "did not run"]
    assert started(reports) == [name]
    # With the gate's own flags, so that it runs the same.
    assert f"--reports {reports}" in Report.read(reports / "passes.json").command


@pytest.mark.parametrize("on_github", [False, True])
def test_a_suite_with_a_mistake_is_refused_and_on_github_it_is_a_finding(
    reports: Path, on_github: bool
) -> None:
    (reports / "suite.toml").write_text(
        'schema = 2\n[case.net]\ncolour = "red"\n[[case.net.run]]\nlane = "executorch"\n'
    )
    command = [sys.executable, "-m", "ci", "gate", "--only", "test_lowering", "--reports", str(reports)]
    command += ["--suite", str(reports / "suite.toml"), "--store", str(reports / "store")]
    environ = {**os.environ, "GITHUB_ACTIONS": "true" if on_github else ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2 and "colour" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    report = reports / "test_lowering.json"
    assert report.exists() == on_github
    assert not on_github or "colour" in Report.read(report).findings[0].message


def test_a_gate_and_its_stages_are_one_run(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the stages' reports would be of an earlier one on the gate's page."""
    monkeypatch.setenv(RUN, "")
    assert run_gate(reports, stage("passes")) == 0
    (run,) = {Report.read(reports / f"{name}.json").run for name in ("gate", "passes")}
    assert run
