"""The gate on models: a wrong weight, a wrong scheme and an operator on the CPU each turn it red, rightly."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.findings import Finding, Outcome, Report
from tests.support.lowering_suites import Done, run, suite

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
