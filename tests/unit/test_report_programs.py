"""The page's part about models, from the reports alone."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ci.report.html import html
from provisioning.base.findings import Metric
from tests.support.program_reports import reports

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
