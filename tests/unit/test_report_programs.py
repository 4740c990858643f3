"""The page's part about models, from the reports alone."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report.html import html
from ci.report.programs import programs_section
from provisioning.base.findings import Metric
from tests.support.program_reports import BAD, GOOD, reports


@pytest.fixture
def section() -> Element:
    found = programs_section(reports())
    assert found is not None
    return found


def _text(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_a_failure_has_operator_reason_way_out_and_command(section: Element) -> None:
    text = _text(next(section.iter("details")))
    for part in (
        "aten.erf.default",
        "No node visitor",
        "torch.nn.functional.gelu",
        f"nox -s test_lowering -- -k {BAD}",
    ):
        assert part in text


def test_figures_of_an_earlier_run_say_so(section: Element) -> None:
    good = next(each for each in section.iter("details") if each.get("id") == f"program-{GOOD}")
    assert "loaded in 93 ms (cached: measured in an earlier run)" in _text(good)
    assert "compiled in 3.50 s with 600 MB of memory, " in _text(good)


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
