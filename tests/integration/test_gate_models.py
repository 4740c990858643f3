"""The gate on models: a wrong weight, a wrong scheme, an operator on the CPU and a model that became dearer
each turn it red, with the finding that says what and where.

Thresholds and baseline are what the toolkit itself derives from a run in which everything is right.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.engine.memo import key_of
from ci.executorch.suite import load_suite
from provisioning.base.files import hash_file
from provisioning.base.findings import Finding, Outcome, Report
from provisioning.base.settings import ROOT
from tests.support.lowering_suites import Done, command, environment, run, suite
from tests.support.processes import alive, descendants, wait_for
from tests.support.runner import dist, runner_reports

__all__ = ["dist", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

RIGHT: dict[str, dict[str, str]] = {
    "good": {},
    "dearer": {},
    "wrong_program": {"arguments": "width = 40"},
    # Good in itself: its program, in which one weight is another, takes the place of wrong_program's.
    "donor": {"arguments": "width = 40, changed = true"},
}
WRONG: dict[str, dict[str, str]] = {
    "wrong_weight": {"run": 'annotations = ["lowering_models:change_a_weight"]'},
    "wrong_scheme": {"scheme": "16a4w"},
    "undelegated": {"factory": "lowering_models:with_erf"},
    "dearer": {"arguments": "width = 512"},
}


def _suite(base: Path, cases: Mapping[str, Mapping[str, str]]) -> Path:
    defaults = {"scheme": "16a8w", "thresholds": "sqnr_db = 0"}
    return suite(base, {name: {**defaults, **case} for name, case in cases.items()})


def _thresholds(path: Path) -> dict[str, str]:
    """Of each case; a wrong one is held to those of the good one that it differs from."""
    figures = {}
    for name, case in load_suite(path).cases.items():
        thresholds = case.runs[0].thresholds
        assert thresholds is not None
        values = thresholds.model_dump(exclude_none=True).items()
        figures[name] = ", ".join(f"{figure} = {value}" for figure, value in values)
    return {name: figures.get(name, figures["good"]) for name in (*RIGHT, *WRONG)}


def _give_program(base: Path, done: Done, giver: str, taker: str) -> None:
    """Put the program of one case in the place of another's in the store, as if it had been compiled so."""
    programs = done.report.metrics["programs"]
    assert isinstance(programs, Mapping)
    paths = {
        name.partition("/")[0]: Path(str(row["program"]))
        for name, row in programs.items()
        if isinstance(row, Mapping)
    }
    folder = paths[taker].parent
    shutil.copyfile(paths[giver], paths[taker])
    entry = folder.with_name(f"{folder.name.partition('-')[0]}.json")
    document = json.loads(entry.read_text(encoding="utf-8"))["document"]
    document["files"]["program.pte"] = hash_file(paths[taker])
    entry.write_text(json.dumps({"digest": key_of(document), "document": document}), encoding="utf-8")


@pytest.fixture(scope="module")
def base(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite after a run in which everything was right, with its thresholds and its baseline."""
    base = tmp_path_factory.mktemp("gate")
    path = _suite(base, RIGHT)
    assert run("test_emulator", base, "--suite", path, "--update-thresholds", "--update-baseline").code == 0
    assert run("test_lowering", base, "--suite", path, "--update-baseline").code == 0
    return base


@pytest.fixture(scope="module")
def gate(base: Path) -> Done:
    thresholds = _thresholds(base / "suite.toml")
    cases = {name: {**case, "thresholds": thresholds[name]} for name, case in {**RIGHT, **WRONG}.items()}
    path = _suite(base, cases)
    _give_program(base, run("test_lowering", base, "--suite", path), "donor", "wrong_program")
    stages = [part for stage in ("test_lowering", "test_emulator") for part in ("--only", stage)]
    return run("gate", base, *stages, "--suite", path)


@pytest.fixture(scope="module")
def reports(gate: Done, base: Path) -> dict[str, Report]:
    return {name: Report.read(base / f"reports/{name}.json") for name in ("test_lowering", "test_emulator")}


def _errors(report: Report, case: str) -> list[Finding]:
    return [
        finding
        for finding in report.findings
        if finding.subject.startswith(f"{case}/") and finding.severity.value == "error"
    ]


def test_the_gate_is_red(gate: Done) -> None:
    assert (gate.code, gate.report.outcome) == (1, Outcome.FAIL)


@pytest.mark.parametrize("case", ["good", "donor"])
def test_a_model_that_is_as_it_should_be_is_not_to_blame(reports: dict[str, Report], case: str) -> None:
    assert not [finding for report in reports.values() for finding in _errors(report, case)]


def test_one_changed_weight_is_found_with_the_operator_and_its_line(reports: dict[str, Report]) -> None:
    assert not _errors(reports["test_lowering"], "wrong_weight")
    (finding,) = _errors(reports["test_emulator"], "wrong_weight")
    assert finding.rule == "emulator-accuracy"
    assert "against the float model: expected at least" in finding.message
    assert "quantizing loses most in aten.linear.default of second at " in finding.message
    code = "return self.second(torch.relu(self.first(x)))"
    lines = (ROOT / "tests/support/lowering_models.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip() == code)
    assert f"lowering_models.py:{line} `{code}`" in finding.message


def test_one_changed_weight_in_the_compiled_program_alone_is_found(reports: dict[str, Report]) -> None:
    assert not _errors(reports["test_lowering"], "wrong_program")
    (finding,) = _errors(reports["test_emulator"], "wrong_program")
    assert (finding.rule, finding.subject) == ("emulator-accuracy", "wrong_program/16a8w/SM8650")
    assert "against the quantized model on " in finding.message
    assert "the program computes something else than the quantized model" in finding.message
    assert "nox -s divergence -- " in finding.remedy and "-k wrong_program/16a8w/SM8650" in finding.remedy


def test_a_wrong_scheme_is_found_with_the_scheme_and_the_operator(reports: dict[str, Report]) -> None:
    (finding,) = _errors(reports["test_emulator"], "wrong_scheme")
    assert (finding.rule, finding.subject) == ("emulator-accuracy", "wrong_scheme/16a4w/SM8650")
    assert "quantizing loses most in aten.linear.default" in finding.message


def test_an_operator_on_the_cpu_is_named_with_line_reason_and_way_out(reports: dict[str, Report]) -> None:
    found = {finding.rule: finding for finding in _errors(reports["test_lowering"], "undelegated")}
    assert {"lowering-cpu-operator", "lowering-delegates"} <= set(found)
    finding = found["lowering-cpu-operator"]
    for part in ("aten.erf.default", "lowering_models.py:", "torch.erf(self.first(x))", "No node visitor"):
        assert part in finding.message
    assert "torch.nn.functional.gelu" in finding.remedy
    assert found["lowering-delegates"].message == "expected 1 delegates, found 2"


def test_a_model_that_costs_more_is_named_with_the_bytes(reports: dict[str, Report]) -> None:
    found = {finding.rule: finding for finding in _errors(reports["test_lowering"], "dearer")}
    assert {"cost-ddr-read", "cost-pte-bytes"} <= set(found)
    assert "in the baseline), found" in found["cost-ddr-read"].message


def test_inputs_and_outputs_of_the_wrong_ones_are_kept(reports: dict[str, Report]) -> None:
    kept = [Path(each.path) for each in reports["test_emulator"].artifacts if each.kind == "failure"]
    cases = {part for path in kept for part in path.parts}
    assert {"wrong_weight", "wrong_scheme", "wrong_program"} <= cases
    assert not {"good", "donor"} & cases
    assert all(path.is_file() for path in kept)
    assert any(path.name.startswith("output_") for path in kept)


@pytest.mark.whole
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
