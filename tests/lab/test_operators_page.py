"""What the table of operators keeps of what tests gave, what is compared with it, and what its pages show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.upstream.accepted import AcceptedTests
from ci.lanes.upstream.suite import Part, UpstreamVerdict
from ci.operators.table import EXACT, TABLE, Cell, OperatorTable, read, shipped_table
from lab.operators import MEASURED_SCHEMES
from lab.operators.cells import table_of
from lab.operators.pages import accept_table, markdown
from lab.operators.records import Draw, MeasuredTest, PartsRecord, RecordedPart
from lab.operators.table_file import to_json
from lab.operators.table_judge import TableJudge, rows_by_key
from lab.operators.value_cases import CHAIN, chains
from provisioning.base.errors import UsageError
from tests.support.own_manifests import own_accepted_tests

Parts = RecordedPart | tuple[RecordedPart, ...]
WHOLE, ON_CPU = RecordedPart("whole", 50), RecordedPart("cpu")


def record(tests: Mapping[str, Parts]) -> PartsRecord:
    rows = {name: test if isinstance(test, tuple) else (test,) for name, test in tests.items()}
    return PartsRecord("x", {test: MeasuredTest(parts, "x") for test, parts in rows.items()})


def table(
    tests: Mapping[str, Parts], newer: Mapping[str, Parts] | None = None, soc: str = "SM8650"
) -> OperatorTable:
    return table_of({"values": {soc: record(tests)}, "rework-op": {soc: record(newer or {})}})


def own(operator: str, **parts: Parts) -> dict[str, Parts]:
    """What our own cases gave at 16a8w: alone, and in a chain (`chain`, `chain__FORM`)."""
    return {
        f"test_{'chains' if name.startswith('chain') else 'values'}"
        f"[qnn_16a8w-{operator}-{name.replace('__', '-').removeprefix('shape_')}]": part
        for name, part in parts.items()
    }


def cell_of(operator: str, more: Mapping[str, Parts] | None = None, **parts: Parts) -> Cell:
    return table({**own(operator, **parts), **(more or {})}).cells[operator]["SM8650"]["16a8w"]


def drawn(*figures: float, to_float: float = 60.0, result: str = "whole") -> RecordedPart:
    """A case with a figure of each draw."""
    draws = tuple(Draw(figure, to_float, to_float) for figure in figures)
    middle = sorted(figures)[len(figures) // 2]
    word = "wrong" if middle < 20 else result
    return RecordedPart(word, middle, in_float=(), float_db=to_float, quantized_db=to_float, draws=draws)


def test_the_figure_of_a_cell_is_the_least_that_gave_its_word_with_its_form() -> None:
    plain = drawn(73, 71, 72)
    assert str(cell_of("exp", plain=plain)) == "whole 71 dB"
    found = cell_of("exp", plain=plain, small=RecordedPart("whole", 51), large=RecordedPart("whole", 70))
    assert str(found) == "whole 51 dB: small [-0.01, 0.01]"
    # Inputs for which it is wrong are named beside it.
    found = cell_of("log", plain=plain, small=RecordedPart("whole", 51), across=RecordedPart("wrong", -6))
    assert str(found) == "whole 51 dB: small [0.0001, 0.01]; WRONG -6 dB: across [0.5, 2.5]"
    assert str(cell_of("exp", plain=drawn(EXACT, EXACT))) == "whole exact"


def test_most_tests_decide_and_the_others_are_named() -> None:
    more: dict[str, Parts]
    wrong, more = (
        RecordedPart("wrong", -6),
        {"test_log.test_log_dtype[qnn_16a8w]": (RecordedPart("dies"), WHOLE)},
    )
    assert str(cell_of("log", more, plain=WHOLE)) == "whole 50 dB; DIES: dtype"
    more = {"test_log.test_log_dtype[qnn_16a8w]": (wrong, wrong, WHOLE)}
    assert str(cell_of("log", more, plain=WHOLE)) == "WRONG -6 dB: dtype"
    # Of words that are as frequent, the worst.
    assert (
        cell_of("log", {"test_log.test_log_a[qnn_16a8w]": RecordedPart("dies")}, plain=WHOLE).result == "dies"
    )
    # What tests nothing has no vote, and is no measurement.
    skipped = {"test_log.test_log_a[qnn_16a8w]": (RecordedPart("bad_test"),) * 3}
    assert (
        cell_of("log", skipped, plain=WHOLE).result == "whole"
        and cell_of("log", skipped).result == "bad_test"
    )


@pytest.mark.parametrize(
    ("part", "text"),
    [
        # Outputs that the quantized model itself has far from the float model.
        (RecordedPart("whole", 143, in_float=(), float_db=3.1, quantized_db=3.1), "LOST 3 dB to float"),
        # Another shape than the float model's.
        (RecordedPart("whole", 107, in_float=()), "WRONG"),
        (RecordedPart("wrong", 15.7, in_float=(), float_db=200.0, quantized_db=16.4), "WRONG 16 dB"),
        # 16 bits that gain less than they should, and what is exact but for the last bit of a float.
        (RecordedPart("whole", 52, in_float=(), float_db=52, quantized_db=98), "whole 52 dB, loses 46 dB"),
        (RecordedPart("whole", 136, in_float=(), float_db=136, quantized_db=200), "whole 136 dB"),
        (RecordedPart("timeout"), "DIES"),
    ],
)
def test_a_word_is_of_htp_beside_the_quantized_model_and_of_that_beside_the_float_model(
    part: RecordedPart, text: str
) -> None:
    assert str(cell_of("softmax", plain=part)) == text


def judged(committed: OperatorTable, test: str, *parts: RecordedPart) -> list[bool]:
    """Whether each change is worse."""
    judge = TableJudge(AcceptedTests("values", "wheels", "SM8650"), Path(), cells=rows_by_key(committed))
    tried = tuple(Part(part.result, part.sqnr_db, part.cpu, measured=measured_of(part)) for part in parts)
    return [worse for _, worse in judge.changes(UpstreamVerdict(test, "passed", parts=tried))]


def measured_of(part: RecordedPart) -> dict[str, Any]:
    """As an adapter gives it."""
    draws = [list(draw) for draw in part.draws]
    if part.in_float is None:
        return {"draws": draws}
    figures = {"float_db": part.float_db, "quantized_db": part.quantized_db}
    return {**figures, "in_float": list(part.in_float), "draws": draws}


@pytest.mark.parametrize(
    ("case", "part", "changes"),
    [
        ("plain", drawn(60, 61, 62), []),
        ("plain", drawn(55, 61, 62), []),
        ("plain", drawn(48, 61, 62), [True]),
        ("plain", drawn(60, 4, 62), [True]),
        ("plain", RecordedPart("dies"), [True]),
        ("plain", RecordedPart("bad_test"), [True]),
        ("small", RecordedPart("wrong", -9), []),
        ("small", RecordedPart("whole", 60), [False]),
        ("small", RecordedPart("crash"), [True]),
        ("7", RecordedPart("cpu"), []),
        ("7", RecordedPart("no_kernel"), [True]),
        ("large", RecordedPart("part", 60), [True]),
    ],
)
def test_what_is_worse_than_the_table_is_a_surprise(
    case: str, part: RecordedPart, changes: list[bool]
) -> None:
    committed = table(
        own("abs", plain=drawn(50, 61, 62), small=RecordedPart("wrong", -6), large=WHOLE, shape_7=ON_CPU)
    )
    assert judged(committed, f"test_values[qnn_16a8w-abs-{case}]", part) == changes


def test_a_table_is_made_of_the_records_of_several_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_accepted_tests(monkeypatch, tmp_path / "manifests")
    with pytest.raises(UsageError):
        accept_table(tmp_path / "nothing")
    shards = [own("log", plain=WHOLE), own("abs", plain=WHOLE)]
    for number, tests in enumerate(shards):
        path = tmp_path / f"nightly/{number}/operators/values-SM8650.json"
        path.parent.mkdir(parents=True)
        path.write_text(record(tests).to_json())
    (newer := tmp_path / "manifests/rework-op/rework-op-SM8650.json").parent.mkdir(parents=True)
    passed = RecordedPart("passed", 96.0)
    newer.write_text(record({"test_mha[16a]": passed, "test_exp[16a]": passed}).to_json())
    accept_table(tmp_path / "nightly")
    # Our own cases of exp were not run, and mha has none.
    assert [*read(tmp_path / "manifests/operators.json").cells] == ["abs", "log", "mha"]
    assert "3 operators on SM8650" in (tmp_path / "manifests/operators.md").read_text()


def test_a_table_is_read_as_it_is_written(tmp_path: Path) -> None:
    (path := tmp_path / "table.json").write_text(to_json(shipped_table()))
    assert read(path) == shipped_table() and path.read_bytes() == TABLE.read_bytes()


def test_what_is_not_quantized_on_htp_alone_was_tried_in_a_chain() -> None:
    assert {case.operator for case in chains() if case.name == CHAIN} <= shipped_table().cells.keys()
    assert set(shipped_table().measured) == {"SM8350", "SM8450", "SM8550", "SM8650", "SM8750", "SM8850"}


def test_the_page_counts_results_and_names_what_fails_or_leaves_htp() -> None:
    found = table(own("abs", plain=RecordedPart("dies")) | own("exp", plain=ON_CPU) | own("log", plain=WHOLE))
    lines = markdown(found, OperatorTable()).splitlines()
    assert "| 16a8w | abs | exp |" in lines
    counts = {cells[0]: cells[1:] for line in lines if len(cells := line.strip("| ").split(" | ")) > 3}
    place = MEASURED_SCHEMES.index("16a8w")
    assert [counts[word][place] for word in ("whole", "CPU", "DIES")] == ["1", "1", "1"]
