"""Findings about programs: delegation, artifact rules, costs; each rule has a case that breaks it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.compiler_log import Traffic
from ci.artifacts.program import CompiledProgram, Delegate, parse
from ci.lanes.executorch import HEAD as PYTORCH
from ci.lanes.executorch import stage, steps
from ci.lanes.executorch.findings import (
    artifact,
    cost,
    delegation,
    failure_in_words,
    findings_about_compiled_program,
    findings_about_run,
    findings_of,
    mismatches_of,
)
from ci.lanes.executorch.lane import LANE
from ci.lanes.executorch.model_options import ExecutorchOptions
from ci.lanes.executorch.orders import EmulatorRun
from ci.lanes.executorch.product import product_of
from ci.lanes.executorch.steps import COMPILED, RAN, ExecutorchPlan
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.one_model.model import OneModel
from ci.operators import CpuOperator
from ci.suite.accepted import Recorded, load_tolerances
from ci.suite.lane import LaneStep
from ci.suite.options import Choice, StageOptions
from ci.suite.runner import Runner
from ci.work.cached_steps import Step
from ci.work.jobs import WorkOptions
from ci.work.outcome import Failure, Result
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Report, Severity
from provisioning.known_faults import NO_FIX, load_faults
from tests.support.elves import Library
from tests.support.lowering import SUITE, compiled_as, make_program, plan_of
from tests.support.programs import BUILD_ID, context, options, program

OF_ANOTHER_DATE = f"{BUILD_ID.rpartition('.')[0]}.260101104044"
ERF = CpuOperator(
    operator="aten.erf.default",
    module="",
    node="aten_erf_default",
    reason="No node visitor, unsupported",
    source="/somewhere/net.py:12",
    code="x = torch.erf(x)",
    kernel=True,
)
DDR = Traffic(read=1_000_000, written=1000)


def _compiled(tmp_path: Path, data: bytes | None = None, **facts: Any) -> Result:
    (tmp_path / "program.pte").write_bytes(program() if data is None else data)
    usual: dict[str, Any] = {"graphs": 1, "ddr": DDR, "cpu_seconds": 2.0}
    return Result(folder=tmp_path, record=compiled_as(**{**usual, **facts}))


class TestDelegation:
    def test_an_operator_over_the_budget_is_an_error_with_its_line_and_reason(self, tmp_path: Path) -> None:
        (finding,) = delegation(make_program(tmp_path), compiled_as(left=[ERF]))
        assert finding.severity is Severity.ERROR
        assert all(part in finding.message for part in ("aten.erf.default", "net.py:12", "No node visitor"))

    def test_the_same_cause_at_several_lines_is_one_finding_with_all_lines(self, tmp_path: Path) -> None:
        other = replace(ERF, operator="aten.cumsum.default")
        left = [ERF, replace(ERF, source="/somewhere/net.py:20"), other]
        first, second = delegation(make_program(tmp_path), compiled_as(left=left))
        assert "net.py:12" in first.message and "net.py:20" in first.message
        assert "3 of at most 0" in first.message and "cumsum" in second.message

    def test_within_the_budget_it_is_a_note(self, tmp_path: Path) -> None:
        allowed = make_program(tmp_path, case="cpu_budget = 1")
        (finding,) = delegation(allowed, compiled_as(left=[ERF]))
        assert finding.severity is Severity.NOTE

    @pytest.mark.parametrize("delegates", [0, 2])
    def test_another_number_of_delegates_is_an_error(self, tmp_path: Path, delegates: int) -> None:
        (finding,) = delegation(make_program(tmp_path), compiled_as(delegates=delegates))
        assert (finding.rule, finding.severity) == ("lowering-delegates", Severity.ERROR)

    @pytest.mark.parametrize(
        ("operators", "delegates", "rules"),
        [
            (("quantized_decomposed.quantize_per_tensor.default",), 1, []),
            (("aten.erf.default",), 1, ["lowering-cpu-operator"]),
            ((), 0, ["lowering-delegates"]),
        ],
    )
    def test_an_lpai_program_is_one_partition_and_only_its_quantization_is_the_cpus(
        self, operators: tuple[str, ...], delegates: int, rules: list[str], tmp_path: Path
    ) -> None:
        compiled = compiled_as(left=[replace(ERF, operator=name) for name in operators], delegates=delegates)
        findings = delegation(make_program(tmp_path, text=LPAI_SUITE), compiled)
        assert [finding.rule for finding in findings if finding.severity is Severity.ERROR] == rules


LPAI_SUITE = """
schema = 2
[case.net]
factory = "net:make"
backend = "lpai"
[[case.net.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8850"]
"""


def test_a_program_that_ends_for_lack_of_a_kernel_names_the_operator_and_its_line(tmp_path: Path) -> None:
    ran = Result(record=EmulatorRun(rule="run", message="OperatorMissing"))
    left = [ERF, replace(ERF, operator="aten.cumprod.default", kernel=False)]
    (finding,) = findings_of(make_program(tmp_path), ran, compiled_as(left=left))
    assert (finding.rule, finding.severity) == ("emulator-run", Severity.ERROR)
    assert all(word in finding.message for word in ("aten.cumprod", "net.py:12", "OperatorMissing"))


@pytest.mark.parametrize(("precision", "known"), [("16a8w", True), ("8a8w", False)])
def test_a_known_fault_for_which_an_operator_does_not_compile_gives_its_fix(
    tmp_path: Path, precision: str, known: bool
) -> None:
    message = "the compiler fails at aten.matmul.default (net.py:34 `return x @ x`): it was not delegated"
    program = make_program(tmp_path, text=SUITE.replace('"8a8w"', f'"{precision}"'))
    told, fix = failure_in_words(program, Failure("compile", message, NO_FIX))
    (fault,) = (fault for fault in load_faults() if fault.id == "matmul-shared-input")
    assert (fault.id in told) is known
    assert fix == (fault.fix if known else NO_FIX)


class TestArtifact:
    @pytest.fixture
    def delegate(self) -> Delegate:
        content = parse(program())
        assert isinstance(content, CompiledProgram)
        return content.delegates[0]

    @pytest.mark.parametrize(
        ("content", "rules"),
        [
            (program(spec=options(online=True)), {"online-prepare"}),
            (program(spec=options(soc_id=69)), {"soc"}),
            (program(spec=options(arch=79)), {"soc"}),
            (program(spec=options(vtcm_mb=4)), {"vtcm"}),
            (program(data=context(build_id="v2.37.0.250724175447")), {"build-id"}),
            (program(data=context(build_id=OF_ANOTHER_DATE)), {"build-id"}),
            (program(data=context(soc="SM8750")), {"soc"}),
            (program(data=context(vtcm=4 << 20)), {"vtcm"}),
            (program(data=b"nothing to read" * 20), {"build-id", "soc", "arch", "vtcm"}),
        ],
    )  # fmt: skip
    def test_each_rule_sees_what_breaks_it(self, content: bytes, rules: set[str], tmp_path: Path) -> None:
        findings = artifact(make_program(tmp_path / "suite"), _compiled(tmp_path, content), BUILD_ID)
        assert {finding.rule.removeprefix("artifact-") for finding in findings} >= rules

    @pytest.mark.parametrize(
        ("different", "data", "rules"),
        [
            ({}, b"", set()),
            ({"backend_type": 2}, b"", {"backend"}),
            ({"soc_id": 95}, b"", {"soc"}),
            ({"arch": 79}, b"", {"soc"}),
            ({"online": True}, b"", {"online-prepare"}),
            ({}, b"v2.37.0.250724175447", {"build-id"}),
            ({}, OF_ANOTHER_DATE.encode(), {"build-id"}),
        ],
    )
    def test_an_lpai_program_is_judged_by_its_options(
        self, different: dict[str, Any], data: bytes, rules: set[str], tmp_path: Path
    ) -> None:
        wanted: dict[str, Any] = {"soc_id": 87, "arch": 81, "backend_type": 4}
        spec = options(**{**wanted, **different})
        content = (data or BUILD_ID.encode()).ljust(64, b"\0")
        compiled = _compiled(tmp_path, program(data=content, spec=spec))
        findings = artifact(make_program(tmp_path / "suite", text=LPAI_SUITE), compiled, BUILD_ID)
        assert {finding.rule.removeprefix("artifact-") for finding in findings} == rules

    def test_a_segment_off_its_page_is_an_error(self, delegate: Delegate) -> None:
        ((rule, message),) = mismatches_of(replace(delegate, offset=128), "SM8650", BUILD_ID)
        assert rule == "segment" and "128" in message

    def test_a_program_that_cannot_be_read_is_an_error(self, tmp_path: Path) -> None:
        (unread,) = artifact(make_program(tmp_path / "suite"), _compiled(tmp_path, b"junk"), BUILD_ID)
        assert unread.rule == "artifact-readable"


AGREED = Recorded(
    ddr_read=1_000_000, ddr_written=1000, ddr_spilled=0, ddr_filled=0, pte_bytes=9000, cpu_seconds=2.0
)


@pytest.mark.parametrize(
    ("agreed", "facts", "rules"),
    [
        (AGREED, {}, {}),
        *(
            (AGREED, {"ddr": replace(DDR, **{name: 1_100_000})}, {f"cost-ddr-{name}": Severity.ERROR})
            for name in ("read", "written", "spilled", "filled")
        ),
        (AGREED, {"data": program() + bytes(30_000)}, {"cost-pte-bytes": Severity.ERROR}),
        (None, {}, {"cost-no-baseline": Severity.WARNING}),
        # A graph of which the compiler wrote no summary.
        (AGREED, {"graphs": 0}, {"cost-unknown": Severity.ERROR}),
    ],
)
def test_a_program_costs_no_more_than_was_agreed(
    tmp_path: Path, agreed: Recorded | None, facts: dict[str, Any], rules: dict[str, Severity]
) -> None:
    made = replace(make_program(tmp_path / "suite"), recorded=agreed)
    findings = cost(made, _compiled(tmp_path, **facts), BUILD_ID, load_tolerances(), tmp_path)
    assert {finding.rule: finding.severity for finding in findings} == rules


class TestWhole:
    """What a stage and `compile` say of a program, where one thing of it is wrong."""

    def plan(self, program: ExecutorchProgram, folder: Path) -> ExecutorchPlan:
        return plan_of(folder, [program], WorkOptions(), qnn={"build_id": BUILD_ID}, logs=folder)

    @pytest.mark.parametrize(
        ("content", "facts", "rules"),
        [
            (None, {}, set()),
            (None, {"left": [ERF]}, {"lowering-cpu-operator"}),
            (None, {"delegates": 2, "graphs": 2}, {"lowering-delegates"}),
            (None, {"graphs": 0}, {"cost-unknown"}),
            (program(data=context(soc="SM8750")), {}, {"artifact-soc"}),
        ],
    )
    def test_a_stage_looks_at_all_of_it(
        self, tmp_path: Path, content: bytes | None, facts: dict[str, Any], rules: set[str]
    ) -> None:
        made = make_program(tmp_path / "suite")
        found = findings_about_compiled_program(
            self.plan(made, tmp_path), made, _compiled(tmp_path, content, **facts)
        )
        assert {finding.rule for finding in found if finding.severity is Severity.ERROR} == rules

    @pytest.mark.parametrize(
        ("content", "facts", "run", "words"),
        [
            (program(data=context(soc="SM8750")), {}, None, "SM8750"),
            (None, {"left": [replace(ERF, kernel=False)]}, None, "no CPU kernel"),
            (None, {}, EmulatorRun(rule="run", message="it ended with exit code 40"), "exit code 40"),
            (None, {}, EmulatorRun(rule="not-finite", message="its outputs are NaN"), "NaN"),
        ],
    )
    def test_compile_refuses_what_is_no_program_for_the_chip_or_does_not_run(
        self,
        tmp_path: Path,
        content: bytes | None,
        facts: dict[str, Any],
        run: EmulatorRun | None,
        words: str,
    ) -> None:
        made = make_program(tmp_path / "suite")
        plan, results = self.plan(made, tmp_path), {COMPILED: _compiled(tmp_path, content, **facts)}
        model = OneModel(plan.selection, "net.py:make", PYTORCH, ExecutorchOptions(), plan.work)
        if run:
            results[RAN] = Result(record=run)
        with pytest.raises(CheckFailed, match=words):
            product_of(model, plan, made, results)

    @pytest.mark.parametrize(
        ("stages", "rules"),
        [
            (("test_emulator",), {"test_emulator": {"lowering-cpu-operator"}}),
            (
                ("test_lowering", "test_emulator"),
                {"test_lowering": {"lowering-cpu-operator"}, "test_emulator": set()},
            ),
        ],
    )
    def test_what_is_on_the_cpu_is_in_the_report_of_the_first_stage_that_judges(
        self, tmp_path: Path, stages: tuple[str, ...], rules: dict[str, set[str]]
    ) -> None:
        made = make_program(tmp_path / "suite")
        plan = self.plan(made, tmp_path)
        compiled = {made.name: _compiled(tmp_path, left=[ERF])}
        ran = {made.name: Result(record=EmulatorRun({"sqnr_db": 60.0}))}
        lane = replace(
            LANE,
            plan=lambda *_: plan,
            steps=(LaneStep(COMPILED, lambda *_: compiled), LaneStep(RAN, lambda *_: ran)),
        )
        choice = Choice(suites=(made.suite,))
        assert lane.run_suite(
            "test_emulator", StageOptions(plan.selection, choice, plan.work, False, False, stages=stages)
        )
        reports = {stage: Report.read(plan.selection.reports / f"{stage}.json") for stage in stages}
        assert rules == {
            stage: {row.rule for row in report.findings if row.severity is Severity.ERROR}
            for stage, report in reports.items()
        }

    @pytest.mark.parametrize("has_library", [True, False])
    def test_a_program_for_the_lpai_runs_where_the_sdk_has_its_library(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_library: bool
    ) -> None:
        made = make_program(tmp_path / "suite", text=LPAI_SUITE)
        library = tmp_path / "lib/x86_64-linux-clang/libQnnLpai.so"
        if has_library:
            Library(soname=library.name).write(library)
        (tmp_path / "files").mkdir()

        def done(step: Step[ExecutorchProgram], programs: Sequence[ExecutorchProgram]) -> dict[str, Result]:
            record = EmulatorRun(rule="run", message="stopped") if step.kind == RAN else compiled_as()
            return {row.name: Result(record=record, folder=tmp_path / "files") for row in programs}

        monkeypatch.setattr(steps, "run_cached_step", done)
        monkeypatch.setattr(stage, "run_cached_step", done)
        plan = replace(self.plan(made, tmp_path), runner=Runner(tmp_path / "runner"))
        results = {COMPILED: stage.compiled_results(plan, {})}
        results[RAN] = stage.run_results(plan, results)
        of_program = {kind: row[made.name] for kind, row in results.items() if made.name in row}
        rules = [finding.rule for finding in findings_about_run(plan, made, of_program)]
        assert rules == (["emulator-run"] if has_library else ["lpai-library"])

    def test_a_metric_that_fails_is_the_failure_of_its_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = make_program(tmp_path / "suite")
        ran = Result(record=EmulatorRun({"sqnr_db": 60.0}), folder=tmp_path / "ran")
        failure = Failure("metric", "score.py has no function", exit_code=1)
        monkeypatch.setattr(stage, "run_cached_step", lambda step, programs: {made.name: ran})
        monkeypatch.setattr(stage, "scores_of", lambda *_: {made.name: failure})
        compiled = {made.name: Result(record=compiled_as(), folder=tmp_path / "compiled")}
        for folder in ("ran", "compiled"):
            (tmp_path / folder).mkdir()
        plan = self.plan(made, tmp_path)
        results = stage.measure(plan, Runner(tmp_path / "runner"), compiled)
        assert results[made.name].failure == failure
        found = findings_about_run(plan, made, {COMPILED: compiled[made.name], RAN: results[made.name]})
        assert [finding.rule for finding in found] == ["emulator-metric"]
