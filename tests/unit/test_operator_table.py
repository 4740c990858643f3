"""What a part of an operator's test gave, and the parts that a sample takes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ci.engine.jobs import Job
from ci.engine.trouble import InTrouble
from ci.engine.work import Result
from ci.lanes.upstream.adapters import TriedModel, part, part_of
from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.ledger import Ledger, RecordedTest, SuiteRecord, load_record
from ci.lanes.upstream.process import RunTest
from ci.lanes.upstream.process import verdict_of as verdict_of_result
from ci.lanes.upstream.verdict import Draw, RecordedPart, UpstreamVerdict
from ci.lanes.upstream.worker import verdict_of
from ci.operators.table import EXACT
from ci.pipeline.steps import Ask
from provisioning.base.stage_run import StageRun


def summary(
    result: str = "SUCCESS",
    *,
    sqnr: tuple[float, ...] = (60.0,),
    on_htp: dict[str, int] | None = None,
    on_cpu: tuple[str, ...] = (),
    error: Exception | None = None,
) -> Any:
    """As ExecuTorch's suite writes it."""
    return SimpleNamespace(
        result=SimpleNamespace(name=result),
        error=error,
        tensor_error_statistics=[SimpleNamespace(sqnr=figure) for figure in sqnr],
        delegated_op_counts=Counter(
            on_htp or {"aten::abs": 1, "quantized_decomposed::quantize_per_tensor": 1}
        ),
        undelegated_op_counts=Counter(dict.fromkeys(on_cpu, 1)),
    )


@pytest.mark.parametrize(
    ("flow", "outcome", "result", "figure"),
    [
        ("qnn_8a8w", summary(), "whole", 60.0),
        ("qnn_8a8w", summary(on_htp={"aten::abs": 1}), "float", 60.0),
        ("qnn_8a8w", summary(on_cpu=("aten::erf",)), "part", 60.0),
        ("qnn_8a8w", summary(on_cpu=("quantized_decomposed::quantize_per_tensor",)), "whole", 60.0),
        ("qnn_8a8w", summary("SUCCESS_UNDELEGATED", sqnr=()), "cpu", None),
        ("qnn_8a8w", summary("OUTPUT_MISMATCH_FAIL", sqnr=(-4.0,)), "wrong", -4.0),
        # ExecuTorch's limits let it pass.
        ("qnn_8a8w", summary(sqnr=(60.0, 14.4)), "wrong", 14.4),
        ("qnn_8a8w", summary("LOWER_FAIL", sqnr=(), error=RuntimeError("no")), "dies", None),
        ("qnn_8a8w", summary("SKIPPED", sqnr=(), error=RuntimeError("shapes")), "bad_test", None),
        ("qnn_8a8w", summary("SKIPPED", sqnr=(), on_cpu=("aten::median",)), "no_kernel", None),
        ("qnn_8a8w", summary(sqnr=(math.inf,)), "whole", EXACT),
        # Outputs of zeros alone, or no outputs: the suite's comparison cannot fail.
        ("qnn_8a8w", summary(sqnr=(-math.inf,)), "bad_test", None),
        ("qnn_8a8w", summary(sqnr=()), "bad_test", None),
        ("qnn_8a8w", summary(sqnr=(50.0, math.nan)), "bad_test", None),
        ("qnn_8a8w", summary(sqnr=(50.0, 30.0)), "whole", 30.0),
    ],
)
def test_a_part_says_where_it_ran_and_how_exactly(
    flow: str, outcome: Any, result: str, figure: float | None
) -> None:
    tested = part_of(outcome, flow)
    assert (tested["result"], tested["sqnr_db"]) == (result, figure)


def test_a_record_keeps_the_figures_against_the_float_model_and_what_runs_in_float(tmp_path: Path) -> None:
    measured = TriedModel(True, [Draw(60.0, 52.31, 97.72)], ["aten.mul.Tensor"])
    tested = part_of(summary(on_cpu=("aten::erf",)), "qnn_16a8w", measured)
    facts = {"test": "a", "outcome": "passed", "parts": [tested], "problems": []}
    path = tmp_path / "record.json"
    path.write_text(SuiteRecord().with_verdicts([verdict_of_result("a", Result(facts))], "x").as_json())
    (kept,) = load_record("operators", "wheels", "SM8650", path).tests["a"].parts
    assert (kept.sqnr_db, kept.cpu, kept.in_float) == (60.0, ("aten::erf",), ("aten.mul.Tensor",))
    assert (kept.float_db, kept.quantized_db) == (52.3, 97.7)


@pytest.mark.parametrize(
    ("before", "now", "rules"),
    [
        ((), ("aten.mul.Tensor",), ["upstream-changed"]),
        (("aten.mul.Tensor",), (), ["upstream-better"]),
        (None, ("aten.mul.Tensor",), []),
    ],
)
def test_an_operator_that_is_not_quantized_any_more_is_a_finding(
    tmp_path: Path, before: tuple[str, ...] | None, now: tuple[str, ...], rules: list[str]
) -> None:
    stage = StageRun("test_upstream", "wheels", "x86_64-linux", "nox -s test_upstream")
    recorded = record({"a": [RecordedPart("whole", 60, in_float=before)]})
    verdict = UpstreamVerdict("a", "passed", parts=(RecordedPart("whole", 60, in_float=now),))
    Judge(Ledger("operators", "wheels"), "SM8650", tmp_path, recorded).findings(stage, [verdict])
    assert [finding.rule for finding in stage.findings] == rules


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([part("whole", 60), part("wrong", -4)], "wrong"),
        ([part("wrong", -4), part("dies")], "dies"),
        ([part("whole", 60), part("bad_test")], "bad_test"),
        ([part("part", 60), part("float", 70)], "passed"),
        ([part("no_kernel", cpu=("aten::median",))], "not_run"),
    ],
)
def test_the_worst_part_decides_a_test(parts: list[dict[str, Any]], outcome: str) -> None:
    assert verdict_of([], [], parts)["outcome"] == outcome


def test_what_fails_beside_a_part_that_tests_nothing_is_a_failure() -> None:
    raised = SimpleNamespace(failed=True, skipped=False, longrepr=None, longreprtext="OSError: teardown")
    verdict = verdict_of([raised], [], [part("whole", 60), part("bad_test")])  # type: ignore[list-item]
    assert (verdict["outcome"], verdict["reason"]) == ("failed", "OSError: teardown")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("lowering: MemoryError: Unable to allocate 3 GiB", "memory"),
        ("lowering: OSError: [Errno 28] No space left on device", "disk"),
    ],
)
def test_memory_and_a_disk_that_run_out_in_a_model_are_told_from_a_failure_of_it(
    tmp_path: Path, error: str, kind: str
) -> None:
    """ExecuTorch's suite takes it for a model that cannot be exported, or for a failure of lowering."""
    reply = {
        "problems": [{"where": "", "what": "RuntimeError: Test failure."}],
        "parts": [part("dies", error=error)],
    }
    worker: Any = SimpleNamespace(ask=lambda order: reply)
    ask = Ask(worker, tmp_path / "log", tmp_path, tmp_path, {})
    with pytest.raises(InTrouble) as raised:
        RunTest(cast(Any, None)).work(Job("t"), ask)
    assert raised.value.trouble.kind == kind


def record(rows: dict[str, list[RecordedPart]]) -> SuiteRecord:
    return SuiteRecord("x", {test: RecordedTest(1, 1, tuple(parts)) for test, parts in rows.items()})


@pytest.mark.parametrize(
    ("recorded", "now", "rules"),
    [(141.3, 138.4, []), (161, 200, []), (141.3, 118, ["upstream-changed"]), (110, 150, ["upstream-better"])],
)
def test_figures_that_are_exact_are_alike(
    tmp_path: Path, recorded: float, now: float, rules: list[str]
) -> None:
    stage = StageRun("test_upstream", "wheels", "x86_64-linux", "nox -s test_upstream")
    before = record({"a": [RecordedPart("whole", recorded)]})
    verdict = UpstreamVerdict("a", "passed", parts=(RecordedPart("whole", now),))
    Judge(Ledger("values", "wheels"), "SM8650", tmp_path, before).findings(stage, [verdict])
    assert [finding.rule for finding in stage.findings] == rules


@pytest.mark.parametrize("to_quantized", [60, 200])
def test_a_coarser_quantizer_is_a_finding(tmp_path: Path, to_quantized: float) -> None:
    """HTP is as near to the quantized model as before, or nearer."""
    stage = StageRun("test_upstream", "wheels", "x86_64-linux", "nox -s test_upstream")
    recorded = record({"a": [RecordedPart("whole", 60, float_db=45, quantized_db=45)]})
    verdict = UpstreamVerdict(
        "a", "passed", parts=(RecordedPart("whole", to_quantized, float_db=5, quantized_db=5),)
    )
    Judge(Ledger("values", "wheels"), "SM8650", tmp_path, recorded).findings(stage, [verdict])
    (finding,) = stage.findings
    assert finding.rule == "upstream-changed" and "45.0 dB" in finding.message and "5.0 dB" in finding.message


def test_what_is_not_compared_with_the_float_model_any_more_is_a_finding(tmp_path: Path) -> None:
    judge = Judge(
        Ledger("values", "wheels"),
        "SM8650",
        tmp_path,
        record({"a": [RecordedPart("whole", 60, float_db=45)]}),
    )
    assert judge.is_surprise(UpstreamVerdict("a", "passed", parts=(RecordedPart("whole", 60),)))


def test_records_of_parts_of_a_suite_add_up() -> None:
    first = UpstreamVerdict("a", "passed", parts=(RecordedPart("whole", 70),), cpu_seconds=2, peak=5 << 20)
    crashed = UpstreamVerdict("a", "crash", parts=(RecordedPart("crash"),))
    both = SuiteRecord().with_verdicts([first], "x").with_verdicts([UpstreamVerdict("b", "passed")], "y")
    assert both.tests["a"] == RecordedTest(2, 5, (RecordedPart("whole", 70),), "x") and both.tests.keys() == {
        "a",
        "b",
    }
    assert both.versions() == "y; 1 of 2 tests with x"
    assert both.with_verdicts([crashed], "z").tests["a"] == RecordedTest(2, 5, (RecordedPart("crash"),), "z")


def drawn(*figures: float, to_float: float = 60.0, cpu: tuple[str, ...] = ()) -> RecordedPart:
    """A case with a figure of each draw."""
    draws = tuple(Draw(figure, to_float, to_float) for figure in figures)
    middle = sorted(figures)[len(figures) // 2]
    result = "wrong" if middle < 20 else "part" if cpu else "whole"
    return RecordedPart(
        result, middle, cpu, in_float=(), float_db=to_float, quantized_db=to_float, draws=draws
    )


def test_a_record_keeps_what_each_draw_gave(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for part_of_a_test in (
        drawn(70, 4, 68),
        RecordedPart("whole", 60, draws=(Draw(60), Draw(61))),
        RecordedPart("wrong", EXACT, draws=(Draw(EXACT, EXACT, 40.0), Draw(31.0, 31.0, EXACT, refused=True))),
    ):
        record = SuiteRecord("x", {"a": RecordedTest(1, 1, (part_of_a_test,))})
        path.write_text(record.as_json())
        (kept,) = load_record("chains", "wheels", "SM8650", path).tests["a"].parts
        assert (kept, kept.draws) == (part_of_a_test, part_of_a_test.draws)
