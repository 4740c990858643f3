"""The page of a profile: a tree by module whose branches hold the sums of what is in them."""

from __future__ import annotations

import pytest

from ci.report.profiles import profile_page, tree_of
from ci.suites.profile import Cost, Measured, OnCpu

COSTS = [
    Cost("mm", 50, 0.5, module="block.linear"),
    Cost("norm", 30, 0.3, module="block.norm"),
    Cost("copy", 20, 0.2, module="(added by the compiler)"),
]


def test_a_branch_has_the_sum_of_what_is_below_it() -> None:
    root = tree_of(COSTS)
    block = root.branches["block"]
    assert root.share == pytest.approx(1) and block.share == pytest.approx(0.8)
    assert block.branches["norm"].share == pytest.approx(0.3)
    assert root.branches["(added by the compiler)"].operators == [COSTS[2]]


def test_names_of_the_model_are_text_on_the_page_and_nothing_is_fetched() -> None:
    page = profile_page("<script>", Measured([Cost("<b>", 1, 1.0, line="<i>")], [OnCpu("<u>", 1, 1)]))
    assert not {"<script>", "<b><", "<i>", "<u>"} & {page[n : n + 8] for n in range(len(page))}
    assert "<script" not in page and "//" not in page and "&lt;b&gt;" in page
