"""What a part of an operator's test gave, and the parts that a sample takes."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ci.engine.jobs import Job
from ci.engine.trouble import InTrouble
from ci.engine.work import Result
from ci.lanes.upstream.adapters import AgainstFloat, part, part_of
from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.ledger import Ledger, RecordedTest, SuiteRecord, load_record
from ci.lanes.upstream.operator_cells import table_of
from ci.lanes.upstream.process import RunTest
from ci.lanes.upstream.process import verdict_of as verdict_of_result
from ci.lanes.upstream.verdict import Draw, RecordedPart, UpstreamVerdict
from ci.lanes.upstream.worker import verdict_of
from ci.operators.table import EXACT, Cell, by_name
from ci.pipeline.steps import Ask
from provisioning.base.stage_run import StageRun


def summary(
    result: str = "SUCCESS",
    *,
    sqnr: tuple[float, ...] = (60.0,),
    on_htp: dict[str, int] | None = None,
    on_cpu: tuple[str, ...] = (),
    error: Exception | None = None,
    against_float: AgainstFloat | None = None,
) -> Any:
    """As ExecuTorch's suite writes it, with what we add."""
    return SimpleNamespace(
        against_float=against_float,
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
    against_float = AgainstFloat(52.31, 97.72, ["aten.mul.Tensor"])
    outcome = summary(on_cpu=("aten::erf",), against_float=against_float)
    facts = {"test": "a", "outcome": "passed", "parts": [part_of(outcome, "qnn_16a8w")], "problems": []}
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
    ("recorded", "rules"),
    [
        (RecordedPart("whole", 60), []),
        (RecordedPart("whole", 64), ["upstream-changed"]),
        (RecordedPart("whole", 50), ["upstream-better"]),
        (RecordedPart("part", 60), ["upstream-better"]),
    ],
)
def test_a_part_that_gave_something_else_when_it_was_recorded_is_a_finding(
    tmp_path: Path, recorded: RecordedPart, rules: list[str]
) -> None:
    stage = StageRun("test_upstream", "wheels", "x86_64-linux", "nox -s test_upstream")
    before = record({"test_abs.a[qnn]": [RecordedPart("whole", 70), recorded]})
    judge = Judge(Ledger("operators", "wheels"), "SM8650", tmp_path, before)
    now = UpstreamVerdict(
        "test_abs.a[qnn]", "passed", parts=(RecordedPart("whole", 70), RecordedPart("whole", 60))
    )
    judge.findings(stage, [now])
    assert [finding.rule for finding in stage.findings] == rules
    assert all(
        "60.0 dB" in finding.message and str(recorded) in finding.message for finding in stage.findings
    )


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


def test_one_case_that_dies_is_named_and_does_not_decide_for_the_others() -> None:
    tests = {
        f"test_conv1d.test_conv1d_{word}[qnn_8a8w]": RecordedTest(1, 1, parts)
        for word, parts in {
            "basic": (RecordedPart("whole", 43), RecordedPart("whole", 50)),
            "padding_modes": (RecordedPart("whole", 30), RecordedPart("wrong", -3), RecordedPart("dies")),
            "stride": (RecordedPart("whole", 41),),
        }.items()
    } | {"test_values[qnn_8a8w-conv1d-plain]": RecordedTest(1, 1, (RecordedPart("whole", 44),))}
    cell = table_of({"operators": {"SM8650": SuiteRecord("x", tests)}}, {}).cells["conv1d"]["SM8650"]["8a8w"]
    assert (cell.result, cell.sqnr_db, cell.models, cell.others) == (
        "whole",
        30,
        7,
        {"padding_modes": "dies"},
    )
    large = {
        f"test_values[qnn_8a8w-conv1d-{word}]": RecordedTest(1, 1, (RecordedPart("wrong", figure),))
        for word, figure in (("large", 45), ("small", 4))
    }
    table = table_of({"operators": {"SM8650": SuiteRecord("x", tests | large)}}, {})
    assert [case.sqnr_db for case in table.cells["conv1d"]["SM8650"]["8a8w"].bad.values()] == [4]
    even = {name: row for name, row in tests.items() if "values" not in name and "basic" not in name}
    even["test_conv1d.test_conv1d_other[qnn_8a8w]"] = RecordedTest(1, 1, (RecordedPart("dies"),))
    table = table_of({"operators": {"SM8650": SuiteRecord("x", even)}}, {})
    assert table.cells["conv1d"]["SM8650"]["8a8w"].result == "dies"


def values(operator: str, parts: dict[str, RecordedPart]) -> dict[str, RecordedTest]:
    """What our own cases gave, by scheme and case: `16a8w-plain`."""
    return {
        f"test_values[qnn_{scheme}-{operator}-{case}]": RecordedTest(1, 1, (outcome,))
        for (scheme, case), outcome in ((name.split("-", 1), outcome) for name, outcome in parts.items())
    }


def test_ranges_count_for_a_scheme_that_differs_in_the_weights_alone_if_there_are_none() -> None:
    tests = values(
        "log",
        {
            "16a8w-plain": RecordedPart("whole", 70),
            "16a8w-small": RecordedPart("wrong", -6),
            "16a4w-plain": RecordedPart("whole", 70),
            "16a16w-plain": RecordedPart("whole", 61),
            "8a8w-small": RecordedPart("wrong", 3),
            "8a4w-plain": RecordedPart("whole", 50),
            # Nothing ran that could be the same.
            "16a4w_block-plain": RecordedPart("dies"),
        },
    )
    row = by_name(table_of({"values": {"SM8650": SuiteRecord("x", tests)}}, {}).cells["log"]["SM8650"])
    small = "small [0.0001, 0.01]"
    assert {scheme: [*cell.bad] for scheme, cell in row.items()} == {
        "16a8w": [small],
        "16a4w": [small],
        # The plain case gives something else, or was not tried.
        "16a16w": [],
        "8a8w": [small],
        "8a4w": [],
        "16a4w_block": ["plain [0.01, 1.0]"],
    }
    failing = values(
        "log",
        {
            "16a8w-plain": RecordedPart("dies"),
            "16a8w-small": RecordedPart("whole", 40),
            "16a4w-plain": RecordedPart("dies"),
        },
    )
    assert (
        table_of({"values": {"SM8650": SuiteRecord("x", failing)}}, {}).cells["log"]["SM8650"]["16a4w"].models
        == 1
    )
    assert row["16a4w"].tried_in == "16a8w" and row["16a4w"].models == 2


def test_a_cell_says_how_much_htp_loses_and_what_is_not_quantized() -> None:
    tests = values(
        "softmax",
        {
            "16a8w-plain": RecordedPart(
                "whole", 52, float_db=52, quantized_db=98, in_float=("aten.mul.Tensor",)
            ),
            "8a8w-plain": RecordedPart("whole", 43, float_db=45, quantized_db=49.6, in_float=()),
            # Exact but for the last bit of a float.
            "16a16w-plain": RecordedPart("whole", 136, float_db=136, quantized_db=200, in_float=()),
            # Nothing of it is quantized: fp16 loses that much.
            "8a4w-plain": RecordedPart(
                "float", 67, float_db=67, quantized_db=200, in_float=("aten.exp.default",)
            ),
        },
    )
    row = by_name(table_of({"values": {"SM8650": SuiteRecord("x", tests)}}, {}).cells["softmax"]["SM8650"])
    assert [str(row[scheme]) for scheme in ("16a8w", "8a8w", "16a16w", "8a4w")] == [
        "whole 52 dB¹, loses 46 dB, mul.Tensor in fp16",
        "whole 43 dB¹",
        "whole 136 dB¹",
        "float 67 dB¹",
    ]
    assert row["8a8w"].good and not row["16a8w"].good


RECORDED = {
    # Rows of manifests/upstream, as they stand there.
    "test_values[qnn_16a8w-index_copy-7]": ["whole", 142.9, [3.1, 3.1]],
    "test_values[qnn_16a8w-index_copy-1x2x3x7x5]": ["part", 62.8, "aten::index_put", [97.3, 62.8]],
    "test_values[qnn_16a8w-index_copy-plain]": ["whole", 100.4, [18.9, 18.9]],
    "test_adaptive_maxpool3d.test_adaptive_maxpool3d_batch_sizes[qnn_16a4w]": ["whole", 107.5, [None, None]],
    "test_stack.test_stack_different_shapes[qnn_16a8w]": ["wrong", 15.7, [200.0, 16.4]],
    "test_conv2d.test_conv2d_basic[qnn_8a8w]": ["whole", 42.0],
}
"""By test: the result of its part, HTP against the quantized model in dB, both of them against float."""


def recorded_cells() -> dict[tuple[str, str], Cell]:
    rows: dict[str, list[object]] = {f"{test} parts": [part] for test, part in RECORDED.items()}
    rows |= {f"{test} cost": [1, 1] for test in RECORDED}
    (path := Path(tempfile.mkdtemp()) / "record.json").write_text(json.dumps({"schema": 3, "accepted": rows}))
    cells = table_of({"values": {"SM8650": load_record("values", "wheels", "SM8650", path)}}, {}).cells
    return {(name, scheme): cell for name, chips in cells.items() for scheme, cell in chips["SM8650"].items()}


def test_noise_that_the_quantized_model_has_itself_is_lost_and_no_green_cell() -> None:
    cell = recorded_cells()["index_copy", "16a8w"]
    assert (str(cell), cell.good) == ("LOST 100 dB, 3 dB to float¹", False)
    assert cell.worst == "shape 7"
    # Its other cases have a figure of their own.
    assert cell.elsewhere == {"shape 1x2x3x7x5": "part"}
    assert {name: str(case) for name, case in cell.bad.items()} == {
        "plain [-1.0, 1.0]": "LOST 100 dB, 19 dB to float",
        "shape 7": "LOST 143 dB, 3 dB to float",
    }


def test_another_shape_than_the_float_models_is_wrong_and_has_no_figure() -> None:
    cell = recorded_cells()["adaptive_maxpool3d", "16a4w"]
    assert (str(cell), cell.good) == ("WRONG, no figure", False)


def test_htp_that_differs_from_the_quantized_model_is_wrong_whatever_the_float_model_says() -> None:
    assert str(recorded_cells()["stack", "16a8w"]) == "WRONG 16 dB¹"
    assert str(recorded_cells()["conv2d", "8a8w"]) == "whole 42 dB¹"


def test_a_bad_result_of_some_of_the_cases_says_of_how_many() -> None:
    wrong, whole = RecordedPart("wrong", -6), RecordedPart("whole", 70)
    tests = {
        "test_log.test_log_dtype[qnn_16a8w]": RecordedTest(1, 1, (wrong, wrong, whole)),
        **values("log", {"16a8w-plain": whole}),
    }
    cell = table_of({"values": {"SM8650": SuiteRecord("x", tests)}}, {}).cells["log"]["SM8650"]["16a8w"]
    assert str(cell) == "WRONG -6 dB¹ in 2 of 4 (2 whole)"


def chained(operator: str, parts: dict[str, RecordedPart]) -> dict[str, RecordedTest]:
    """What our own cases gave alone at 16a8w (`plain`), and in a chain (`chain`, `chain-FORM`)."""
    suites = {name: "chains" if name.startswith("chain") else "values" for name in parts}
    return {
        f"test_{suites[name]}[qnn_16a8w-{operator}-{name}]": RecordedTest(1, 1, (tested,))
        for name, tested in parts.items()
    }


def cell_of(operator: str, **parts: RecordedPart) -> Cell:
    tests = chained(operator, {name.replace("__", "-"): tested for name, tested in parts.items()})
    return table_of({"values": {"SM8650": SuiteRecord("x", tests)}}, {}).cells[operator]["SM8650"]["16a8w"]


def drawn(*figures: float, to_float: float = 60.0, cpu: tuple[str, ...] = ()) -> RecordedPart:
    """A case with a figure of each draw."""
    draws = tuple(Draw(figure, to_float, to_float) for figure in figures)
    middle = sorted(figures)[len(figures) // 2]
    result = "wrong" if middle < 20 else "part" if cpu else "whole"
    return RecordedPart(
        result, middle, cpu, in_float=(), float_db=to_float, quantized_db=to_float, draws=draws
    )


ON_CPU = RecordedPart("cpu", None, ("aten::native_layer_norm",))


def test_a_cell_is_cpu_only_if_it_stays_there_in_the_chain() -> None:
    whole = drawn(80, 81, 82, 83, 84)
    cell = cell_of("clone", plain=RecordedPart("cpu"), chain=whole)
    assert (cell.result, cell.good) == ("whole", True)
    assert str(cell) == "whole, alone CPU; chain whole 82 dB (80 to 84)"
    stays = cell_of(
        "erf", plain=RecordedPart("cpu", None, ("aten::erf",)), chain=replace(ON_CPU, cpu=("aten::erf",))
    )
    assert (stays.result, str(stays)) == ("cpu", "CPU: erf; chain CPU")
    # It is no better than what became of it.
    dies = cell_of("layer_norm", plain=ON_CPU, chain=RecordedPart("dies"))
    assert (dies.result, str(dies)) == ("dies", "DIES, alone CPU; chain DIES")


def test_a_chain_whose_layers_do_not_compile_says_nothing_of_an_operator() -> None:
    tests = {
        **chained("clone", {"plain": RecordedPart("cpu"), "chain": RecordedPart("dies")}),
        **chained("erf", {"plain": RecordedPart("cpu", None, ("aten::erf",)), "chain": RecordedPart("dies")}),
        # It is tried in the chain alone.
        **chained("rand", {"chain": RecordedPart("dies")}),
    }
    cells = table_of({"values": {"SM8350": SuiteRecord("x", tests)}}, {}).cells
    assert [str(cells[name]["SM8350"]["16a8w"]) for name in ("clone", "erf")] == ["CPU", "CPU: erf"]
    assert "rand" not in cells


def test_what_a_form_changes_is_named() -> None:
    cell = cell_of("layer_norm", plain=ON_CPU, chain=drawn(101, 101, 101), chain__without_weight=ON_CPU)
    assert str(cell) == "whole, alone CPU; chain whole 101 dB, without weight CPU"
    assert "cpu" in cell.results
    # A form that is wrong is found by what reads cells.
    worse = cell_of(
        "add", plain=RecordedPart("whole", 90), chain=drawn(90, 91, 92), chain__scalar=drawn(3, 4, 5)
    )
    assert str(worse) == "whole 90 dB¹; chain whole 91 dB (90 to 92), scalar WRONG 4 dB (3 to 5)"
    assert {inputs: str(case) for inputs, case in worse.bad.items()} == {
        "in a chain, scalar": "WRONG 4 dB (3 to 5)"
    }
    assert not worse.good


def test_a_word_that_changes_with_the_draw_is_said() -> None:
    changes, same = drawn(70, 4, 68, 66, 71), drawn(70, 69, 68, 66, 71)
    cells = {
        "whole 69 dB (66 to 71); chain whole 68 dB (4 to 71), 1 of 5 draws WRONG": (same, changes),
        "whole 68 dB (4 to 71), 1 of 5 draws WRONG; chain whole 69 dB (66 to 71)": (changes, same),
    }
    for text, (plain, chain) in cells.items():
        cell = cell_of("log", plain=plain, chain=chain)
        assert str(cell) == text
        assert "wrong" in cell.results and not cell.good
    lost = cell_of("log", plain=drawn(70, 70, 70), chain=drawn(70, 71, 72, to_float=8))
    assert str(lost) == "whole 70 dB; chain LOST 71 dB (70 to 72), 8 dB to float"


def test_a_draw_that_its_test_refuses_makes_a_case_wrong_and_the_others_are_counted() -> None:
    """Whole numbers have to be equal, however small their difference is."""
    draws = (*(Draw(EXACT, EXACT, EXACT),) * 4, Draw(31.0, 31.0, EXACT, refused=True))
    part = RecordedPart("wrong", EXACT, in_float=(), float_db=EXACT, quantized_db=EXACT, draws=draws)
    cell = cell_of("argmax", plain=part)
    assert str(cell) == "WRONG exact (31 to exact), 4 of 5 draws whole"


def test_a_cell_has_the_draws_of_all_programs_of_its_plain_case() -> None:
    """Before V73, at 16 bits, one linear layer is exact to 55 dB and another to 86 dB."""

    def cell(*programs: RecordedPart) -> str:
        tests = {"test_values[qnn_16a8w-linear32-plain]": RecordedTest(1, 1, programs)}
        table = table_of({"values": {"SM8350": SuiteRecord("x", tests)}}, {})
        return str(table.cells["linear32"]["SM8350"]["16a8w"])

    assert cell(drawn(85, 86, 87), drawn(61, 62, 63), drawn(55, 56, 57)) == "whole 62 dB (55 to 87)"
    # By draws most are whole, though most programs are not.
    most = (drawn(3, 4, 5, 60, 61), drawn(3, 4, 5, 60, 61), drawn(62, 62, 62, 62, 62))
    assert cell(*most) == "whole 60 dB (3 to 62), 6 of 15 draws WRONG"
    assert (
        cell(drawn(61, 62, 63), RecordedPart("bad_test"), RecordedPart("bad_test"))
        == "whole 62 dB (61 to 63)"
    )
    wrong = drawn(3, 4, 5)
    assert cell(drawn(85, 86, 87), wrong, drawn(61, 62, 63)).startswith("whole 62 dB (3 to 87)")
    assert cell(drawn(85, 86, 87), RecordedPart("dies"), drawn(61, 62, 63)) == "DIES"


def test_the_figures_of_a_cell_are_the_median_and_the_range_of_its_plain_case() -> None:
    plain = drawn(73, 71, 72, 72.4, 71.6)
    assert str(cell_of("exp", plain=plain)) == "whole 72 dB (71 to 73)"
    # What is about as good with other inputs is not named, and what is worse is.
    assert str(cell_of("exp", plain=plain, large=RecordedPart("whole", 70.2))) == "whole 72 dB (71 to 73)"
    cell = cell_of("exp", plain=plain, large=RecordedPart("whole", 70.2), small=RecordedPart("whole", 51))
    assert str(cell) == "whole 72 dB (71 to 73); 51 dB: small [-0.01, 0.01]"
    assert (cell.sqnr_db, cell.range_db, cell.least_db, cell.one_draw) == (72, (71, 73), 51, False)
    # Inputs for which it is wrong or lost are named before those for which it is less exact.
    log = {"plain": plain, "small": RecordedPart("whole", 51), "across": RecordedPart("wrong", -6)}
    assert str(cell_of("log", **log)) == "whole 72 dB (71 to 73); WRONG -6 dB: across [0.5, 2.5]"
    # Above what 16 bits can hold nothing is worse.
    exact = drawn(*[EXACT] * 5)
    assert str(cell_of("exp", plain=exact, small=RecordedPart("whole", 120))) == "whole exact"
    lost = cell_of("exp", plain=drawn(70, 71, 72, to_float=9), small=drawn(65, 65, 65, to_float=3))
    assert str(lost) == "LOST 71 dB (70 to 72), 9 dB to float; 3 dB to float: small [-0.01, 0.01]"


def test_where_the_chain_decides_a_cell_has_its_figures_once() -> None:
    part = replace(drawn(50, 51, 52, cpu=("aten::exp",)), in_float=("aten.log.default",))
    cell = cell_of("mish", plain=replace(part, sqnr_db=70), chain=part)
    assert str(cell) == "part, log in fp16: exp; chain part 51 dB (50 to 52)"
    assert (cell.sqnr_db, cell.range_db, cell.of_chain) == (51, (50, 52), True)


def test_a_figure_of_one_draw_is_marked_and_is_the_least_of_all_cases() -> None:
    once = cell_of("exp", plain=RecordedPart("whole", 72), small=RecordedPart("whole", 51))
    assert (str(once), once.worst) == ("whole 51 dB¹", "small [-0.01, 0.01]")
    # The draws are of a case that gives something else than most others do.
    wrong, whole = RecordedPart("wrong", -6), drawn(70, 71, 72)
    tests = {
        "test_exp.test_exp_dtype[qnn_16a8w]": RecordedTest(1, 1, (wrong, wrong)),
        **values("exp", {"16a8w-plain": whole}),
    }
    cell = table_of({"values": {"SM8650": SuiteRecord("x", tests)}}, {}).cells["exp"]["SM8650"]["16a8w"]
    assert str(cell) == "WRONG -6 dB¹ in 2 of 3 (1 whole)"


@pytest.mark.parametrize(
    ("scheme", "result"), [("8a8w", "lost"), ("16a4w_block", "whole"), ("16a16w", "lost")]
)
def test_what_the_layers_of_a_chain_lose_is_not_lost_by_the_operator(scheme: str, result: str) -> None:
    part = drawn(70, 71, 72, to_float=8)
    tests = {f"test_chains[qnn_{scheme}-relu6-chain]": RecordedTest(1, 1, (part,))}
    cells = table_of({"chains": {"SM8650": SuiteRecord("x", tests)}}, {}).cells["relu6"]["SM8650"]
    assert [cell.result for cell in cells.values()] == [result]


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


def test_what_upstream_skips_hides_no_measurement() -> None:
    skipped = {
        f"test_abs.test_{word}[qnn]": RecordedTest(1, 1, (RecordedPart(word),))
        for word in ("not_run", "bad_test")
    }
    measured = {"test_abs.test_abs_shapes[qnn]": RecordedTest(1, 1, (RecordedPart("whole", 71.6),))}
    for tests, result in ((skipped, "bad_test"), (skipped | measured, "whole")):
        table = table_of({"operators": {"SM8650": SuiteRecord("x", tests)}}, {})
        assert table.cells["abs"]["SM8650"]["fp16"].result == result
