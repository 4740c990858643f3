"""The gate on models: a wrong weight, an operator on the CPU and a model that became dearer
each turn it red, with the finding that says what and where.

Thresholds and baseline are what the toolkit itself derives from the model that is right.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import pytest

from ci.suite.accepted import accepted_path
from ci.work.results import digest_of
from provisioning.accepted_file import Accepted, accept
from provisioning.base.files import hash_file
from provisioning.base.findings import Finding, Outcome, Report
from provisioning.base.settings import DEFAULT_PROFILE, ROOT
from tests.support import whole
from tests.support.lowering_suites import Done, run, suite
from tests.support.runner import dist, runner_reports

__all__ = ["dist", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.long("runs a whole gate"), pytest.mark.timeout(1200)]

CASES: dict[str, dict[str, str]] = {
    "good": {},
    # Good in itself: the program of wrong_weight, whose weights are others, takes the place of its own.
    "wrong_program": {"arguments": "width = 40"},
    "wrong_weight": {"arguments": "width = 40", "run": 'annotations = ["lowering_models:change_a_weight"]'},
    "undelegated": {"factory": "lowering_models:with_erf"},
    "dearer": {"arguments": "width = 512"},
}
WITH_WHOLE = ("undelegated", "dearer")
"""Those that the whole suites have beside the ordinary run's."""


def _as_the_good_one(accepted: Accepted, cases: Collection[str]) -> Accepted:
    """The thresholds of all, and the costs of the one that costs more."""
    thresholds = {f"executorch/{case}/16a8w": accepted.of("executorch/good/16a8w") for case in cases}
    good = accepted.of("executorch/good/16a8w/SM8650")
    costs = {f"executorch/{case}/16a8w/SM8650": good for case in cases if case == "dearer"}
    return accepted.updated({**thresholds, **costs})


def _give_program(done: Done, giver: str, taker: str) -> None:
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
    entry.write_text(json.dumps({"digest": digest_of(document), "document": document}), encoding="utf-8")


@pytest.fixture(scope="module")
def base(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def gate(request: pytest.FixtureRequest, base: Path) -> Done:
    """All are held to the thresholds and the costs of the good one, as the toolkit measured them."""
    defaults = {"scheme": "16a8w", "thresholds": ""}
    left = () if request.config.getoption(whole.FLAG) else WITH_WHOLE
    cases = {name: {**defaults, **case} for name, case in CASES.items() if name not in left}
    path = suite(base, cases)
    lowered = run("test_lowering", base, "--suite", path, "--accept")
    assert run("test_emulator", base, "--suite", path, "-k", "good/", "--accept").code == 0
    accept(accepted_path(path, DEFAULT_PROFILE), partial(_as_the_good_one, cases=cases))
    _give_program(lowered, "wrong_weight", "wrong_program")
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


def test_the_gate_is_red_and_the_good_model_is_not_to_blame(gate: Done, reports: dict[str, Report]) -> None:
    assert (gate.code, gate.report.outcome) == (1, Outcome.FAIL)
    assert not [finding for report in reports.values() for finding in _errors(report, "good")]


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
    assert "nox -s divergence -- " in finding.fix and "-k wrong_program/16a8w/SM8650" in finding.fix


@pytest.mark.whole
def test_an_operator_on_the_cpu_is_named_with_line_reason_and_way_out(reports: dict[str, Report]) -> None:
    rules = {finding.rule: finding for finding in _errors(reports["test_lowering"], "undelegated")}
    assert "lowering-cpu-operator" in rules and "lowering-delegates" not in rules
    finding = rules["lowering-cpu-operator"]
    for part in ("aten.erf.default", "lowering_models.py:", "torch.erf(self.first(x))", "No node visitor"):
        assert part in finding.message
    assert "torch.nn.functional.gelu" in finding.fix
    assert "expected 1 delegates, found 2" in finding.message


@pytest.mark.whole
def test_a_model_that_costs_more_is_named_with_the_bytes(reports: dict[str, Report]) -> None:
    rules = {finding.rule: finding for finding in _errors(reports["test_lowering"], "dearer")}
    assert {"cost-ddr-read", "cost-pte-bytes"} <= set(rules)
    assert "in the baseline), found" in rules["cost-ddr-read"].message


def test_inputs_and_outputs_of_the_wrong_ones_are_kept(reports: dict[str, Report]) -> None:
    for case in ("wrong_weight", "wrong_program"):
        (finding,) = _errors(reports["test_emulator"], case)
        kept = Path(finding.message.rpartition("inputs, outputs and log are in ")[2])
        names = {path.name for path in kept.rglob("*.raw")}
        assert {"input_0_0.raw", "output_0_0.raw"} <= names
        assert not [path for path in kept.parents[2].glob("good/*/*") if path.is_dir()]
