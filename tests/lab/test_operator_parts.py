"""What a part of an operator's test gave, and what a record keeps of it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.lanes.upstream.suite import UpstreamVerdict
from ci.operators.table import EXACT
from ci.work.plain import read, to_json
from lab.operators.adapters import TriedModel, part_of
from lab.operators.records import Draw, PartsRecord, load_record


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
    assert (tested.result, tested.sqnr_db) == (result, figure)


def test_a_record_keeps_the_figures_against_the_float_model_and_what_runs_in_float(tmp_path: Path) -> None:
    measured = TriedModel(True, [Draw(60.0, 52.31, 97.72)], ["aten.mul.Tensor"])
    tested = part_of(summary(on_cpu=("aten::erf",)), "qnn_16a8w", measured)
    verdict = read(UpstreamVerdict, to_json(UpstreamVerdict("a", "passed", parts=(tested,))))
    path = tmp_path / "record.json"
    path.write_text(PartsRecord().add_verdicts([verdict], "x").to_json())
    (kept,) = load_record(path).tests["a"].parts
    assert (kept.sqnr_db, kept.cpu, kept.in_float) == (60.0, ("aten::erf",), ("aten.mul.Tensor",))
    assert (kept.float_db, kept.quantized_db) == (52.3, 97.7)
