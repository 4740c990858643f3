"""The gate on models: a wrong weight, a wrong scheme and an operator on the CPU each turn it red, rightly."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from provisioning.findings import Finding, Outcome, Report
from provisioning.settings import ROOT
from tests.support.lowering_suites import Done, command, environment, run, suite
from tests.support.processes import alive, descendants, wait_for

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

CASES = {
    "good": {},
    "wrong_weight": {"run": 'annotations = ["lowering_models:spoil_a_weight"]'},
    "wrong_scheme": {"scheme": "16a2w"},
    "undelegated": {"factory": "lowering_models:with_erf", "case": "delegates = 2"},
    "wrong_count": {"case": "delegates = 2"},
}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Done:
    base = tmp_path_factory.mktemp("gate")
    stages = [
        part for stage in ("build_runner", "test_lowering", "test_emulator") for part in ("--only", stage)
    ]
    return run("gate", base, *stages, "--suite", suite(base, CASES))


@pytest.fixture(scope="module")
def reports(gate: Done, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder = Path(gate.report.command and gate.out.rpartition("the whole of it: ")[2].strip()).parent
    return {stage: Report.read(folder / f"{stage}.json") for stage in ("test_lowering", "test_emulator")}


def _errors(reports: dict[str, Report], case: str) -> list[Finding]:
    return [
        finding
        for report in reports.values()
        for finding in report.findings
        if finding.subject.startswith(f"{case}/") and finding.severity.value == "error"
    ]


def test_the_gate_is_red(gate: Done) -> None:
    assert (gate.code, gate.report.outcome) == (1, Outcome.FAIL)


def test_a_model_that_is_as_it_should_be_is_not_to_blame(reports: dict[str, Report]) -> None:
    assert not _errors(reports, "good")


def test_a_wrong_weight_shows_against_float_eager(reports: dict[str, Report]) -> None:
    (finding,) = _errors(reports, "wrong_weight")
    assert finding.rule == "emulator-accuracy"
    assert "SQNR in dB against float eager: expected at least 15" in finding.message


def test_a_wrong_scheme_shows_in_the_accuracy(reports: dict[str, Report]) -> None:
    (finding,) = _errors(reports, "wrong_scheme")
    assert (finding.rule, finding.subject) == ("emulator-accuracy", "wrong_scheme/16a2w/SM8650")


def test_an_operator_on_the_cpu_is_named_with_line_reason_and_way_out(reports: dict[str, Report]) -> None:
    (finding,) = _errors(reports, "undelegated")
    assert finding.rule == "lowering-cpu-operator"
    for part in ("aten.erf.default", "lowering_models.py:", "torch.erf(self.first(x))", "No node visitor"):
        assert part in finding.message
    assert "torch.nn.functional.gelu" in finding.remedy


def test_another_number_of_delegates_is_named(reports: dict[str, Report]) -> None:
    (finding,) = _errors(reports, "wrong_count")
    assert finding.message == "expected 2 delegates, found 1"


def test_inputs_and_outputs_of_the_wrong_ones_are_kept(reports: dict[str, Report]) -> None:
    kept = [Path(each.path) for each in reports["test_emulator"].artifacts if each.kind == "failure"]
    folders = {path.parts[-2] if path.parts[-2] != "outputs" else path.parts[-3] for path in kept}
    assert folders == {"wrong_weight-16a16w-SM8650", "wrong_scheme-16a2w-SM8650"}
    assert all(path.is_file() for path in kept)
    assert any(path.name.startswith("output_") for path in kept)


def test_interrupted_it_leaves_no_process_and_says_what_did_not_run(tmp_path: Path) -> None:
    one = suite(tmp_path, {f"net{index}": {"arguments": f"width = {8 + index}"} for index in range(8)})
    process = subprocess.Popen(
        command("gate", tmp_path, "--only", "test_lowering", "--only", "test_emulator", "--suite", one),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # The stage and its two workers.
    wait_for(lambda: len(descendants(process.pid)) >= 3)
    started = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    wait_for(lambda: not alive(started))
    assert len(started) >= 3 and not alive(started)
    report = Report.read(tmp_path / "reports/gate.json")
    assert [(each.subject, each.message) for each in report.findings if each.severity.value == "error"] == [
        ("test_lowering", "did not run: test_lowering was interrupted"),
        ("test_emulator", "did not run: the gate was interrupted"),
    ]
