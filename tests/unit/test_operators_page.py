"""What the table of operators keeps of the records, and what its pages show of it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.lanes.upstream.ledger import RecordedTest, SuiteRecord
from ci.lanes.upstream.operator_cells import table_of, upstream_files
from ci.lanes.upstream.operators_page import PAGE, markdown_of
from ci.lanes.upstream.value_cases import CHAIN, chains
from ci.lanes.upstream.verdict import RecordedPart
from ci.operators.html import html_of
from ci.operators.names import key_of, names_of
from ci.operators.table import Cell, OperatorTable, by_name, files_of, read, shipped
from ci.pipeline.precision import MEASURED_SCHEMES, ONNX_PRECISIONS
from provisioning.base.foreign import visible
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import load_socs
from tests.support.pages import read_page, structure_of, text_of
from tests.support.schemas import validator

BOTH = {"abs": ("lowers", "quantizes"), "isnan": ("lowers",)}


def record(tests: Mapping[str, RecordedPart | tuple[RecordedPart, ...]]) -> SuiteRecord:
    rows = {name: test if isinstance(test, tuple) else (test,) for name, test in tests.items()}
    return SuiteRecord("x", {test: RecordedTest(1, 1, parts, "x") for test, parts in rows.items()})


def table(
    operators: Mapping[str, RecordedPart | tuple[RecordedPart, ...]] | None = None,
    newer: Mapping[str, RecordedPart | tuple[RecordedPart, ...]] | None = None,
    files: Mapping[str, tuple[str, ...]] = BOTH,
    chips: Mapping[str, Mapping[str, RecordedPart | tuple[RecordedPart, ...]]] | None = None,
) -> OperatorTable:
    """`chips`: what the newer tests gave on other chips."""
    new = {soc: record(tests) for soc, tests in {"SM8650": newer or {}, **(chips or {})}.items()}
    return table_of({"operators": {"SM8650": record(operators or {})}, "rework-op": new}, files)


def cell(found: OperatorTable, operator: str, scheme: str = "8a8w", place: str = "SM8650") -> Cell:
    return by_name(found.cells[operator][place])[scheme]


def own(case: str, scheme: str = "qnn_8a8w") -> str:
    return f"test_values[{scheme}-abs-{case}]"


PLAIN, SMALL, RANK_6 = own("plain"), own("small"), own("1x2x1x3x7x5")
SUITE = "test_abs.test_abs_shapes[qnn_8a8w]"


def test_without_draws_the_figure_is_the_least_of_all_cases_and_its_case_is_named() -> None:
    tests = {
        SUITE: RecordedPart("whole", 52),
        PLAIN: RecordedPart("whole", 51),
        RANK_6: RecordedPart("whole", 33),
    }
    found = cell(table(tests), "abs")
    assert (found.sqnr_db, found.worst, str(found)) == (33, "shape 1x2x1x3x7x5", "whole 33 dB¹")
    found = cell(table({**tests, SMALL: RecordedPart("whole", 30)}), "abs")
    assert (found.sqnr_db, found.worst) == (30, "small [-0.01, 0.01]")
    found = cell(table({**tests, SUITE: RecordedPart("whole", 21)}), "abs")
    assert (found.sqnr_db, found.worst) == (21, "shapes")


def test_a_case_that_runs_elsewhere_than_its_cell_says_is_named() -> None:
    tests = {
        PLAIN: RecordedPart("whole", 51),
        RANK_6: RecordedPart("cpu"),
        SMALL: RecordedPart("float", 60),
        own("3x7"): RecordedPart("dies"),
    }
    found = table(tests)
    assert cell(found, "abs").elsewhere == {"shape 1x2x1x3x7x5": "cpu", "small [-0.01, 0.01]": "float"}
    assert [*cell(found, "abs").bad] == ["shape 3x7"]
    text = markdown_of(found)
    assert "| shape 1x2x1x3x7x5 | 8a8w | whole | CPU | abs |" in text


NEWER_WHOLE = {
    "test_gather[8a]": RecordedPart("passed", 48.0),
    "test_gather[fp]": RecordedPart("passed", 72.0),
}


def test_newer_tests_give_the_place_and_a_figure_of_their_own_kind() -> None:
    found = table(newer={**NEWER_WHOLE, "test_gather[16a]": RecordedPart("wrong", 4.0)})
    assert [str(cell(found, "gather", scheme)) for scheme in ("fp16", "8a8w", "16a8w")] == [
        "whole 72 dB¹",
        "whole, 48 dB to float¹",
        "WRONG, 4 dB to float¹",
    ]
    assert cell(found, "gather").good and not cell(found, "gather", "16a8w").good


def test_newer_tests_count_only_where_the_others_measure_nothing() -> None:
    skipped = {"test_gather.test_gather_a[qnn_8a8w]": RecordedPart("bad_test")}
    measured = {"test_gather.test_gather_a[qnn_8a8w]": RecordedPart("part", 31)}
    assert cell(table(skipped, NEWER_WHOLE), "gather").result == "whole"
    assert str(cell(table(measured, NEWER_WHOLE), "gather")) == "part 31 dB¹"
    # By another spelling it is the same operator.
    spelt = {"test_adaptive_avgpool1d.test_a[qnn_8a8w]": RecordedPart("cpu")}
    found = table(
        spelt,
        {
            "test_adaptive_avg_pool_1d[8a]": RecordedPart("passed", 40),
            "test_less_than[8a]": RecordedPart("dies"),
        },
    )
    assert [*found.cells] == ["adaptive_avgpool1d", "lt"] and cell(
        found, "adaptive_avgpool1d"
    ).result == "cpu"


def test_operators_of_like_names_are_two_and_copies_of_views_one() -> None:
    names = ("index", "index_copy", "slice_copy", "slice")
    tests = {f"test_{name}[8a]": RecordedPart("passed", 40) for name in names}
    assert [*table(newer=tests).cells] == ["index", "index_copy", "slice_copy"]


@pytest.mark.parametrize(
    ("test", "part"),
    [
        ("test_any[8a]", RecordedPart("passed")),  # it expects an exception
        ("test_fold_unsupported_parameters[8a]", RecordedPart("passed", 40)),
        ("test_layer_norm[8a]", RecordedPart("failed")),
        ("test_linear_general[16a2w_pcq]", RecordedPart("passed", 40)),
        ("test_conv2d_linear_like[fp16a8w_pcq]", RecordedPart("passed", 40)),
    ],
)
def test_what_newer_tests_do_not_show_is_no_row(test: str, part: RecordedPart) -> None:
    assert table(newer={test: part}).cells == {}


def test_a_newer_test_that_passes_with_outputs_far_from_the_float_model_makes_nothing_whole() -> None:
    far = RecordedPart("passed", 0.3)
    for part in (far, RecordedPart("bad_test", 0.3)):
        assert str(cell(table(newer={"test_gather[8a]": part}), "gather")) == "no test, 0 dB to float¹"
        assert str(cell(table(newer={"test_gather[fp]": part}), "gather", "fp16")) == "WRONG 0 dB¹"
    mixed = cell(
        table(newer={"test_gather[8a]": (RecordedPart("passed", 40), RecordedPart("passed", 41), far)}),
        "gather",
    )
    assert (str(mixed), mixed.good) == ("whole, 40 dB to float¹ (1 no test)", False)


def test_ids_of_newer_tests_name_their_scheme() -> None:
    ids = {"16a4w_pcq": "16a4w", "16a16w_ptq": "16a16w", "16a4w_lpbq": "16a4w_block", "16a8w": "16a8w"}
    for identifier, scheme in ids.items():
        found = table(newer={f"test_embedding[{identifier}]": RecordedPart("passed", 40)})
        assert [*found.cells["embedding"]["SM8650"]] == [scheme]


def test_a_chip_without_fp16_has_no_cells_at_fp16() -> None:
    ours = {"test_abs[fp]": RecordedPart("passed", 150), "test_abs[8a]": RecordedPart("passed", 47)}
    found = table(newer=ours, chips={"SM8350": ours})
    assert [*found.cells["abs"]["SM8350"]] == ["8a8w"]
    assert {*found.cells["abs"]["SM8650"]} == {"fp16", "8a8w"}


def test_another_chip_is_compared_case_by_case() -> None:
    ours = {
        "test_gather.test_gather_a[qnn_8a8w]": RecordedPart("part", 31),
        "test_abs.test_abs_a[qnn]": RecordedPart("dies"),
    }
    chips = {
        "SM8450": {"test_gather[8a]": RecordedPart("dies"), "test_abs[fp]": RecordedPart("passed", 70)},
        "SM8750": {"test_gather[8a]": RecordedPart("passed", 40), "test_abs[fp]": RecordedPart("dies")},
    }
    found = table(ours, {**NEWER_WHOLE, "test_abs[fp]": RecordedPart("passed", 60)}, chips=chips)
    assert cell(found, "gather", place="SM8450").default == "whole"
    assert cell(found, "gather", place="SM8750").default is None
    assert cell(found, "abs", "fp16", "SM8750").default == "whole"
    assert cell(found, "abs", "fp16", "SM8450").default is None
    text = markdown_of(found).partition("## Other chips")[2]
    rows = [line for line in text.splitlines() if line.startswith(("| gather", "| abs"))]
    assert rows == [
        "| abs | fp16 | DIES | whole 70 dB¹ | DIES |",
        "| gather | 8a8w | part 31 dB¹ | DIES | whole, 40 dB to float¹ |",
    ]
    assert "- SM8450 (V69): 1 of 2 cells; x" in text
    alike = table(newer=NEWER_WHOLE, chips={"SM8450": {"test_gather[8a]": RecordedPart("passed", 47.0)}})
    text = markdown_of(alike).partition("## Other chips")[2].partition("\n## ")[0]
    assert "- SM8450 (V69): none of 1 cells; x" in text and "|" not in text
    html = html_of(found)
    assert html.count("<small>≠ whole</small>") == 2
    assert "SM8450, SM8650, SM8750: x." in html


@pytest.mark.parametrize(
    ("scheme", "part", "marked"),
    [
        ("qnn", RecordedPart("whole", 70), []),
        ("qnn", RecordedPart("part", 70), ["abs", "is_nan"]),
        ("qnn_8a8w", RecordedPart("whole", 50), ["is_nan"]),
        ("qnn_8a8w", RecordedPart("float", 50), ["abs"]),
        ("qnn_8a8w", RecordedPart("bad_test"), []),
    ],
)
def test_a_cell_that_is_not_as_the_files_say_is_marked(
    scheme: str, part: RecordedPart, marked: list[str]
) -> None:
    found = table({f"test_{name}.test_a[{scheme}]": part for name in ("abs", "is_nan", "custom")})
    rows = [line for line in markdown_of(found).splitlines() if line.startswith("| ") and "†" in line]
    assert [line.split(" | ")[0].removeprefix("| ") for line in rows] == marked
    shown = html_rows(found)
    assert [
        name for name, row in shown.items() if any("unlike-files" in results(row, x) for x in row)
    ] == marked


def test_the_files_of_an_operator_are_those_of_what_it_is_exported_as_too() -> None:
    files = {"layernorm": ("quantizes",), "nativelayernorm": ("lowers", "quantizes")}
    found = table({"test_layer_norm.test_a[qnn]": RecordedPart("cpu")}, files=files)
    assert found.files("layer_norm") == ("lowers", "quantizes")
    assert "unlike-files" in results(html_rows(found)["layer_norm"], "fp16")


def html_rows(found: OperatorTable, place: str = "SM8650") -> dict[str, dict[str, Element]]:
    """The cells of the page by operator and scheme; the one without a scheme has the files."""
    rows = [row for row in read_page(html_of(found)).iter("tr") if row.get("data-soc") == place]
    return {text_of(row[0]): {cell.get("data-scheme", ""): cell for cell in row[1:]} for row in rows}


def results(row: dict[str, Element], scheme: str) -> list[str]:
    """What the filter finds a cell by."""
    return row[scheme].get("data-results", "").split()


def test_what_executorchs_partitioner_names_is_tried_in_a_chain() -> None:
    spec = importlib.util.find_spec("executorch")
    assert spec and spec.submodule_search_locations
    lists = Path(spec.submodule_search_locations[0], "backends/qualcomm/partition/common_defs.py").read_text(
        encoding="utf-8"
    )
    refused = {key_of(name) for name in re.findall(r"edge\.aten\.(\w+)\.", lists.partition("constant_op")[0])}
    tried = {name for case in chains() if case.name == CHAIN for name in names_of(case.operator)}
    assert "le" in refused and {"scalartensor", "hadamardtransform", "todimorder"} <= {*upstream_files()}
    assert (refused | {*upstream_files()}) - tried == set()


@pytest.mark.parametrize("soc", ["SM8350", "SM8450", "SM8550", "SM8650", "SM8750", "SM8850"])
def test_what_is_not_quantized_on_htp_alone_was_tried_in_a_chain(soc: str) -> None:
    """But where the layers of a chain do not compile themselves: with weights of 16 bits on V68 and V69."""
    tried = {case.operator for case in chains() if case.name == CHAIN}
    layers_compile = "chain" in shipped().cells["clone"][soc]["16a16w"].model_fields_set
    assert {
        (operator, scheme)
        for operator in tried
        for scheme, cell in shipped().cells[operator].get(soc, {}).items()
        if cell.result in ("cpu", "part", "float") and cell.chain is None
        if layers_compile or scheme != "16a16w"
    } == set()


def test_the_page_shows_each_cell_its_worst_case_and_the_files() -> None:
    tests = {
        "test_abs.test_abs_a[qnn_8a8w]": RecordedPart("cpu", None, ("aten::abs",)),
        "test_acos.test_acos_a[qnn_8a8w]": RecordedPart("whole", 61),
        "test_values[qnn_8a8w-acos-small]": RecordedPart("whole", 47),
    }
    found = html_rows(table(tests))
    assert (text_of(found["abs"]["8a8w"]), found["abs"]["8a8w"].get("class")) == ("CPU: abs †", "cpu")
    assert results(found["abs"], "8a8w") == ["cpu", "unlike-files"]
    assert text_of(found["abs"][""]) == "lowers, quantizes"
    assert results(found["acos"], "8a8w") == ["whole"]
    assert [*found["acos"]["8a8w"].itertext()] == ["whole 47 dB¹", "worst: small [-0.01, 0.01]"]


def test_the_filters_find_a_cell_by_what_any_of_its_cases_gave() -> None:
    tests = {
        PLAIN: RecordedPart("whole", 51),
        SMALL: RecordedPart("wrong", 4),
        RANK_6: RecordedPart("cpu"),
        own("7"): RecordedPart("dies"),
        "test_abs.test_a[qnn_8a8w]": RecordedPart("crash"),
    }
    row = html_rows(table({**tests, SUITE: RecordedPart("whole", 50)}))["abs"]
    assert row["8a8w"].get("class") == "mixed"
    assert results(row, "8a8w") == ["whole", "cpu", "wrong", "dies", "crash"]
    assert {"WRONG: small [-0.01, 0.01] (4 dB)", "CPU: shape 1x2x1x3x7x5"} < {*row["8a8w"].itertext()}


def test_the_chip_with_the_most_cases_is_the_first_of_an_operators_rows() -> None:
    tests = {"test_gather[8a]": RecordedPart("passed", 48.0)}
    found = html_of(table(newer=tests, chips={"SM8350": tests, "SM8850": tests}))
    rows = [row.get("data-soc") for row in read_page(found).iter("tr")]
    assert [*filter(None, rows)] == ["SM8650", "SM8350", "SM8850"]


@given(st.text(st.sampled_from("<>&\"'/-! script\n\x1b_"), min_size=1, max_size=30))
def test_names_of_operators_and_cases_are_never_markup(text: str) -> None:
    def page(name: str) -> str:
        case = Cell(result="part", worst=name, models=2, cpu=(name,), others={name: "dies"}, in_float=(name,))
        table = {"schema": 1, "measured": {"SM8650": name}, "upstream": {}}
        return html_of(
            OperatorTable.model_validate({**table, "cells": {"abs" + name: {"SM8650": {"8a8w": case}}}})
        )

    shown = page(text)
    assert structure_of(read_page(shown)) == structure_of(read_page(page("x")))
    assert visible(shown) == shown


def test_the_page_is_one_file_without_network() -> None:
    assert not re.findall(
        r"https?:|<link|src=|@import|url\(", html_of(table({PLAIN: RecordedPart("whole", 51)}))
    )


def test_the_committed_page_has_all_that_executorch_names_also_what_only_newer_tests_measure() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")}
    assert {"gather", "index", "sort", "lt", "unbind", "upsample_bicubic2d", "scatter"} <= rows
    assert "Not measured, and ExecuTorch" not in text


def test_the_parts_of_a_table_are_the_table(tmp_path: Path) -> None:
    for path, text in shipped().as_files(tmp_path / "table.json").items():
        path.write_text(text, encoding="utf-8")
    assert read(tmp_path / "table.json") == shipped()


def test_each_chip_that_has_a_record_has_its_part_of_the_committed_table() -> None:
    records = (MANIFESTS / "upstream" / "values").glob("wheels-*.json")
    assert set(shipped().measured) == {path.stem.removeprefix("wheels-") for path in records} != set()


def schema_takes(document: Any) -> bool:
    return bool(validator(MANIFESTS / "schema" / "operators.json").is_valid(document))


def test_the_schema_takes_tables_and_nothing_else() -> None:
    good = json.loads(table({PLAIN: RecordedPart("whole", 51), RANK_6: RecordedPart("dies")}).as_json())
    committed = [json.loads(file.read_text(encoding="utf-8")) for file in files_of()]
    assert schema_takes(good) and len(committed) > 1 and all(map(schema_takes, committed))
    row = good["cells"]["abs"]["SM8650"]
    bad: list[dict[str, Any]] = [{name: good[name] for name in good if name != lacks} for lacks in good]
    bad += [
        {},
        {**good, "cells": {"abs": {"no such chip": row}}},
        {**good, "cells": {"abs": {"SM8650": {"9a9w": row["8a8w"]}}}},
        {**good, "cells": {"abs": {"SM8650": {"8a8w": {"sqnr_db": 3}}}}},
        {**good, "measured": {"no such chip": "x"}},
        {**good, "onnx": {"cells": {"Abs": {"SM8650": {"16a4w": row["8a8w"]}}}}},
    ]
    assert [broken for broken in bad if schema_takes(broken)] == []


def test_the_schema_knows_every_chip_and_scheme() -> None:
    good = json.loads(table({PLAIN: RecordedPart("whole", 51)}).as_json())
    cell = good["cells"]["abs"]["SM8650"]["8a8w"]
    row = dict.fromkeys(MEASURED_SCHEMES, cell)
    assert schema_takes({**good, "cells": {"abs": dict.fromkeys(load_socs(), row)}})
    onnx = {"Abs": dict.fromkeys(load_socs(), dict.fromkeys(ONNX_PRECISIONS, cell))}
    assert schema_takes({**good, "onnx": {"cells": onnx}})
