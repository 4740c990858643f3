"""What is said of programs of the ONNX lane, and how they compare with ExecuTorch's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.compiler_log import Traffic
from ci.lanes.onnx.findings import (
    changes_of,
    cost,
    findings_of,
)
from ci.lanes.onnx.orders import Accuracy
from ci.lanes.onnx.suite import OnnxProgram, programs_of
from ci.suite.accepted import Recorded, load_tolerances
from ci.work.outcome import Failure, Result
from provisioning.base.findings import Severity
from tests.support.onnx_suites import (
    QUANTIZED,
    SUITE,
    compiled,
    facts,
    failed,
    near,
    write_suite,
)


@pytest.fixture
def program(tmp_path: Path) -> OnnxProgram:
    only: OnnxProgram = programs_of(write_suite(tmp_path))[0]
    return only


def rules(program: OnnxProgram, result: Any) -> list[tuple[str, Severity]]:
    return [(finding.rule, finding.severity) for finding in findings_of(program, result)]


class TestFindings:
    def test_what_fails_is_an_error_of_its_kind(self, program: OnnxProgram) -> None:
        result = failed("cpu-node", operators=[["Erf"], ["Add"]])
        assert rules(program, result) == [("onnx-cpu-node", Severity.ERROR)]

    @pytest.mark.parametrize(
        ("figures", "found"),
        [
            (near(), []),
            (near(sqnr_db=19.9), [("onnx-accuracy", Severity.ERROR)]),
            (near(agreement=0.99), [("onnx-accuracy", Severity.ERROR)]),
            (near(variation_sqnr_db=-29.6), [("accuracy-constant", Severity.WARNING)]),
        ],
    )
    def test_a_program_is_held_to_its_thresholds(
        self, program: OnnxProgram, figures: Accuracy, found: list[tuple[str, Severity]]
    ) -> None:
        assert rules(program, compiled(facts(near=figures))) == found

    @pytest.mark.parametrize(
        ("figures", "found"),
        [
            ({"sqnr_db": 9.9}, [("onnx-accuracy", Severity.ERROR)]),
            ({"agreement": 0.999}, [("onnx-accuracy", Severity.ERROR)]),
            ({"agreement": 1.0}, []),
            ({"sqnr_db": 10.0}, [("threshold-placeholder", Severity.WARNING)]),
        ],
    )
    def test_without_thresholds_a_program_is_held_to_what_is_required_of_all(
        self, tmp_path: Path, figures: dict[str, float], found: list[tuple[str, Severity]]
    ) -> None:
        program = programs_of(write_suite(tmp_path, SUITE.partition("thresholds")[0]))[0]
        assert rules(program, compiled(facts(near=Accuracy(figures)))) == found

    def test_fp16_that_is_computed_in_float32_is_an_error(self, tmp_path: Path) -> None:
        suite = SUITE.replace("16a8w", "fp16").replace(", reference_sqnr_db = 30", "")
        (program, _) = programs_of(write_suite(tmp_path, suite))
        assert rules(program, compiled(facts(half_floats=False))) == [("onnx-precision", Severity.ERROR)]
        assert rules(program, compiled(facts(half_floats=None))) == []


AGREED = {"sqnr_db": 30.0, "reference_sqnr_db": 50.0}
DIES = failed("refused", "QnnGraph_finalize failed: error 1002 in /tmp/a/m.onnx")
REFUSED = failed("cpu-node", operators=[["Erf"], ["Add"]])


class TestChanged:
    """A recorded case against its baseline."""

    def found(self, folder: Path, agreed: Recorded, result: Any) -> list[tuple[str, Severity, str]]:
        text = SUITE.replace("arguments", "recorded = true\narguments").partition("thresholds")[0]
        program = replace(programs_of(write_suite(folder, text))[0], recorded=agreed)
        findings = list(changes_of(program, result, 1.0))
        assert all("--accept" in finding.fix for finding in findings)
        return [(finding.rule, finding.severity, finding.message) for finding in findings]

    @pytest.mark.parametrize(
        ("figures", "finding"),
        [
            (AGREED, None),
            ({"sqnr_db": 29.0, "reference_sqnr_db": 50.9}, None),
            ({**AGREED, "reference_sqnr_db": 60.0}, None),
            ({**AGREED, "sqnr_db": 28.99}, ("onnx-changed", Severity.ERROR)),
            ({"sqnr_db": 40.0, "reference_sqnr_db": 40.0}, ("onnx-changed", Severity.ERROR)),
            ({"sqnr_db": 30.0}, ("onnx-changed", Severity.ERROR)),
            ({**AGREED, "sqnr_db": float("nan")}, ("onnx-changed", Severity.ERROR)),
            ({**AGREED, "variation_sqnr_db": 5.0}, None),
        ],
    )
    def test_a_lower_or_missing_figure_is_an_error(
        self, tmp_path: Path, figures: dict[str, float], finding: tuple[str, Severity] | None
    ) -> None:
        result = compiled(facts(near=Accuracy(figures)))
        found = self.found(tmp_path, Recorded(accuracy=AGREED), result)
        assert [row[:2] for row in found] == ([finding] if finding else [])

    @pytest.mark.parametrize(
        ("share", "rule"),
        [(2 / 3, None), (1.0, None), (0.6, "onnx-changed"), (None, "onnx-changed")],
    )
    def test_a_lower_share_of_equal_integers_is_another_result(
        self, tmp_path: Path, share: float | None, rule: str | None
    ) -> None:
        figures = {} if share is None else {"agreement": share}
        agreed = Recorded(accuracy={"agreement": 0.666666})
        found = self.found(tmp_path, agreed, compiled(facts(near=Accuracy(figures))))
        assert [row[0] for row in found] == ([rule] if rule else [])

    @pytest.mark.parametrize(
        ("agreed", "result", "words"),
        [
            (Recorded(refused=("Erf",), taken=("Add",)), REFUSED, None),
            (Recorded(refused=("Erf",), taken=("Add", "Mul")), REFUSED, ("Add, Mul", "takes Add")),
            (Recorded(failed="dies", message="QnnGraph_finalize failed: error 1002 in …"), DIES, None),
            (Recorded(failed="dies", message="no kernel"), DIES, ("no kernel", "QnnGraph_finalize")),
            (Recorded(failed="crash"), DIES, ("crash", "dies")),
            (Recorded(accuracy=AGREED), DIES, ("compiled", "dies")),
            (
                Recorded(accuracy=AGREED),
                compiled(replace(facts(), quantized=replace(QUANTIZED, in_float=True))),
                ("compiled", "not quantized"),
            ),
        ],
    )
    def test_another_result_is_an_error_with_both_values(
        self, tmp_path: Path, agreed: Recorded, result: Result, words: tuple[str, str] | None
    ) -> None:
        found = self.found(tmp_path, agreed, result)
        assert [row[:2] for row in found] == ([("onnx-changed", Severity.ERROR)] if words else [])
        assert all(word in found[0][2] for word in words or ())

    @pytest.mark.parametrize(
        "result",
        [
            failed("timeout"),
            failed("suite"),
            failed("crash", "the process ended by SIGKILL"),
            Result(failure=Failure("crash", "the process ended by SIGSEGV", blame="machine")),
        ],
    )
    def test_what_ended_without_a_result_is_not_compared(self, tmp_path: Path, result: Result) -> None:
        assert self.found(tmp_path, Recorded(accuracy=AGREED), result) == []


COSTS = Recorded(
    ddr_read=100, ddr_written=10, ddr_spilled=0, ddr_filled=0, context_bytes=50_000, cpu_seconds=2.0
)
TOLERANCES = load_tolerances()
MOST = int(TOLERANCES.costs["context_bytes"].most(50_000))


@pytest.mark.parametrize(
    ("agreed", "changes", "rules"),
    [
        # What is tolerated is tolerated to the byte.
        (COSTS, {"bytes": MOST}, {}),
        (COSTS, {"bytes": MOST + 1}, {"cost-context-bytes": Severity.ERROR}),
        *(
            (
                COSTS,
                {"ddr": Traffic(**{"read": 100, "written": 10, name: 10_000})},
                {f"cost-ddr-{name}": Severity.ERROR},
            )
            for name in ("read", "written", "spilled", "filled")
        ),
        (COSTS, {"ddr": None}, {"cost-unknown": Severity.ERROR}),
        (None, {}, {"cost-no-baseline": Severity.WARNING}),
    ],
)
def test_a_program_costs_no_more_than_was_agreed(
    program: OnnxProgram, agreed: Recorded | None, changes: dict[str, Any], rules: dict[str, Severity]
) -> None:
    findings = cost(replace(program, recorded=agreed), compiled(facts(**changes)), TOLERANCES)
    assert {finding.rule: finding.severity for finding in findings} == rules
