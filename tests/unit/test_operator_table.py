"""What a part of an operator's test gave, and the table of operators that comes of it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.upstream import table
from ci.upstream.adapters import EXACT, part_of
from ci.upstream.judge import Judge
from ci.upstream.ledger import Cost, Ledger, Verdict
from ci.upstream.stage import sample_of
from ci.upstream.table import Cell, Table, cells_of, html_of, text_of
from ci.upstream.worker import verdict_of
from provisioning.base.errors import UsageError
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
    ("flow", "given", "result", "figure"),
    [
        ("qnn_8a8w", summary(), "whole", 60.0),
        ("qnn", summary(on_htp={"aten::abs": 1}), "whole", 60.0),
        ("qnn_8a8w", summary(on_htp={"aten::abs": 1}), "float", 60.0),
        ("qnn_8a8w", summary(on_cpu=("aten::erf",)), "part", 60.0),
        ("qnn_8a8w", summary(on_cpu=("quantized_decomposed::quantize_per_tensor",)), "whole", 60.0),
        ("qnn_8a8w", summary("SUCCESS_UNDELEGATED", sqnr=()), "cpu", None),
        ("qnn_8a8w", summary("OUTPUT_MISMATCH_FAIL", sqnr=(-4.0,)), "wrong", -4.0),
        ("qnn_8a8w", summary("LOWER_FAIL", sqnr=(), error=RuntimeError("no")), "dies", None),
        ("qnn_8a8w", summary("PTE_RUN_FAIL", sqnr=(), error=RuntimeError("no")), "dies", None),
        ("qnn_8a8w", summary("SKIPPED", sqnr=(), error=RuntimeError("shapes")), "bad_test", None),
        ("qnn_8a8w", summary("SKIPPED", sqnr=(), on_cpu=("aten::median",)), "no_kernel", None),
        ("qnn_8a8w", summary(sqnr=(math.inf,)), "whole", EXACT),
        # Outputs of zeros alone, or no outputs: the suite's comparison cannot fail.
        ("qnn_8a8w", summary(sqnr=(-math.inf,)), "bad_test", None),
        ("qnn_8a8w", summary(sqnr=(math.nan,)), "bad_test", None),
        ("qnn_8a8w", summary(sqnr=()), "bad_test", None),
        ("qnn_8a8w", summary(sqnr=(50.0, math.nan)), "bad_test", None),
        ("qnn_8a8w", summary(sqnr=(50.0, 30.0)), "whole", 30.0),
    ],
)
def test_a_part_says_where_it_ran_and_how_exactly(
    flow: str, given: Any, result: str, figure: float | None
) -> None:
    part = part_of(given, flow)
    assert (part["result"], part["sqnr_db"]) == (result, figure)


def part(result: str, sqnr_db: float | None = None, cpu: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"result": result, "sqnr_db": sqnr_db, "cpu": list(cpu), "error": ""}


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


def verdict(test: str, *parts: dict[str, Any], crashed: bool = False) -> Verdict:
    return Verdict(test, "failed" if crashed else "passed", parts=parts, crashed=crashed)


def test_a_cell_is_the_worst_of_all_models_and_leaves_out_bad_tests() -> None:
    cells = cells_of([
        verdict("test_abs.test_abs_dtype[qnn-float32]", part("whole", 74)),
        verdict("test_abs.test_abs_shapes[qnn]", part("whole", 70), part("part", 72, ("aten::view",))),
        verdict("test_abs.test_abs_shapes[qnn_8a8w]", part("bad_test"), part("whole", 58)),
        verdict("test_log.test_log_range[qnn_16a4w]", part("whole", -6.0)),
        verdict("test_stack.test_stack_mixed[qnn_8a8w]", crashed=True),
        verdict("test_linear.test_linear[qnn]", part("bad_test")),
        # Built with the scheme of 8a8w: says nothing of its own.
        verdict("test_abs.test_abs_dtype[qnn_16a4w_block-float32]", part("dies")),
    ])  # fmt: skip
    assert cells == {
        "abs": {
            "fp16": Cell(result="part", sqnr_db=70, models=3, cpu=("aten::view",)),
            "8a8w": Cell(result="whole", sqnr_db=58),
        },
        "log": {"16a4w": Cell(result="wrong", sqnr_db=-6)},
        "stack": {"8a8w": Cell(result="crashes")},
        "linear": {"fp16": Cell(result="bad_test")},
    }


def test_what_is_agreed_to_joins_the_table_and_leaves_other_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, written = tmp_path / "kept.json", tmp_path / "written.json"
    monkeypatch.setattr(table, "KEPT", kept)
    for soc, result in (("SM8650", "dies"), ("SM8750", "whole"), ("SM8650", "whole")):
        cells = {"abs": {"8a8w": {soc: Cell.model_validate({"result": result})}}}
        written.write_text(table.as_json(Table(measured={soc: "x"}, cells=cells)), encoding="utf-8")
        table.agree(written)
    found = table.read(kept).cells["abs"]["8a8w"]
    assert {soc: cell.result for soc, cell in found.items()} == {"SM8650": "whole", "SM8750": "whole"}
    assert "| abs |" in table.markdown()
    written.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"written\.json"):
        table.agree(written)


def test_the_page_has_every_cell_and_nothing_of_a_name_becomes_markup() -> None:
    cell = Cell(result="part", sqnr_db=38.9, cpu=("aten::<b>",))
    page = html_of(Table(measured={"SM8650": "x"}, cells={"abs": {"8a8w": {"SM8650": cell}}}))
    assert "<b>" not in page.partition("<tbody>")[2].partition("</tbody>")[0] and "39 dB" in text_of(cell)
    assert "http" not in page


def judge(tmp_path: Path, recorded: float, soc: str = "SM8650") -> Judge:
    return Judge(Ledger("operators", "wheels"), soc, tmp_path, {"test_abs.a[qnn]": Cost(1, 1, recorded)})


@pytest.mark.parametrize(("recorded", "worse"), [(60.0, False), (60.9, False), (64.0, True)])
def test_a_test_that_passes_with_less_accuracy_than_recorded_is_an_error(
    tmp_path: Path, recorded: float, worse: bool
) -> None:
    stage = StageRun("test_upstream", "wheels", "x86_64-linux", "nox -s test_upstream")
    now = verdict("test_abs.a[qnn]", part("whole", 60.0))
    judge(tmp_path, recorded).findings(stage, [now])
    assert [finding.rule for finding in stage.findings] == ["upstream-accuracy"] * worse
    # Figures are those of the default chip.
    assert not judge(tmp_path, recorded, "SM8750").lost(now)


def test_the_parts_of_a_sample_are_disjoint_and_together_the_whole() -> None:
    tests = [f"test_{number}" for number in range(100)]
    ledger = Ledger("operators", "wheels", sample=("test_1",))
    parts = [set(sample_of(f"{index}/4", tests, ledger)) for index in (1, 2, 3, 4)]
    assert set.union(*parts) == set(tests) and sum(map(len, parts)) == len(tests)
    assert list(sample_of("", tests, ledger)) == ["test_1"] and list(sample_of(None, tests, ledger)) == tests
