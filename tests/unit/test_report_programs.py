"""The page's part about models, from the reports alone."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report.html import html
from ci.report.programs import collected, programs_section
from provisioning.base.findings import Metric
from tests.support.program_reports import BAD, GOOD, reports


@pytest.fixture
def section() -> Element:
    found = programs_section(reports())
    assert found is not None
    return found


def _text(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_both_stages_words_come_together_in_one_program() -> None:
    programs = {each.name: each for each in collected(reports())}
    assert set(programs[GOOD].rows) == {"test_lowering", "test_emulator"}
    assert (programs[GOOD].passed, programs[BAD].passed) == (True, False)


def test_every_chip_of_the_matrix_leads_to_its_program(section: Element) -> None:
    anchors = {each.get("id") for each in section.iter("details")}
    links = [str(each.get("href")) for each in section.iter("a")]
    assert len(links) == 2 and {link[1:] for link in links} == anchors


def test_a_failure_has_operator_reason_way_out_and_command(section: Element) -> None:
    text = _text(next(section.iter("details")))
    for part in (
        "aten.erf.default",
        "No node visitor",
        "torch.nn.functional.gelu",
        f"nox -s test_lowering -- -k {BAD}",
    ):
        assert part in text


def test_the_partition_is_drawn_in_order(section: Element) -> None:
    boxes = next(each for each in section.iter("ol"))
    assert [each.get("class", "").split()[0] for each in boxes] == ["htp", "cpu", "htp"]
    assert "CPU 1 operatorerf × 1" in _text(boxes)


def test_bars_are_marked_at_the_baseline_and_bad_where_the_stage_says_so() -> None:
    lowered, ran = reports()
    grew = replace(lowered.findings[0], rule="cost-ddr-read", message="expected at most 2 MB")
    section = programs_section([replace(lowered, findings=(grew,)), ran])
    assert section is not None
    bad, good = section.iter("details")
    for program, verdict in ((bad, "bad"), (good, "good")):
        value, mark = next(
            bar for bar in program.iter("svg") if "baseline 2 MB" in str(bar.get("aria-label"))
        )
        assert value.get("class") == verdict
        assert float(str(mark.get("x"))) < float(str(value.get("width")))


def test_figures_of_an_earlier_run_say_so(section: Element) -> None:
    good = next(each for each in section.iter("details") if each.get("id") == f"program-{GOOD}")
    assert "loaded in 93 ms (cached: measured in an earlier run)" in _text(good)
    assert "compiled in 3.50 s with 600 MB of memory, " in _text(good)


def test_programs_whose_names_differ_by_a_slash_have_places_of_their_own() -> None:
    programs: dict[str, Metric] = {name: {"verdict": "pass"} for name in ("net/fp16-x/S", "net-fp16/x/S")}
    shown = collected([replace(reports()[0], metrics={"programs": programs})])
    assert len({each.anchor for each in shown}) == 2


def test_a_baseline_of_another_build_says_so() -> None:
    lowered, _ = reports()
    row = collected([lowered])[0].rows["test_lowering"]
    programs: dict[str, Metric] = {GOOD: {**row, "baseline_build_id": "v2.37.0"}}
    assert "QNN v2.37.0" in html([replace(lowered, metrics={"programs": programs})])


def test_the_top_of_the_page_says_what_is_wrong_with_a_link_to_more() -> None:
    page = html(reports())
    top = page[: page.index("What ran, in order")]
    for part in (f'href="#program-{BAD}"', "torch.erf(x)", "No node visitor"):
        assert part in top


def test_without_programs_there_is_no_such_part() -> None:
    assert programs_section([replace(each, metrics={}) for each in reports()]) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
KEYS = ("verdict", "partition", "costs", "figures", "baseline", "thresholds", "seconds", "delegates", "case")


@given(st.dictionaries(st.text(max_size=20), st.dictionaries(st.sampled_from(KEYS), JSON), max_size=3))
def test_whatever_a_report_says_becomes_a_page(programs: dict[str, dict[str, Metric]]) -> None:
    made: dict[str, Metric] = {name: dict(row) for name, row in programs.items()}
    assert html([replace(each, metrics={"programs": made}) for each in reports()]).endswith("</html>\n")


def test_nothing_of_a_report_becomes_markup() -> None:
    evil = "<script>alert(1)</script>"
    rows: dict[str, Metric] = {evil: {"verdict": "fail", "case": evil, "partition": [{"where": evil}]}}
    page = html([replace(reports()[0], metrics={"programs": rows})])
    assert not re.search(r"<script>alert", page)
