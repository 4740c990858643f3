"""The page of a profile: a tree by module whose branches hold the sums of what is in them."""

from __future__ import annotations

from ci.report.profiles import profile_page
from ci.suites.profile import Cost, Measured, OnCpu


def test_names_of_the_model_are_text_on_the_page_and_nothing_is_fetched() -> None:
    page = profile_page("<script>", Measured([Cost("<b>", 1, 1.0, line="<i>")], [OnCpu("<u>", 1, 1)]))
    assert not {"<script>", "<b><", "<i>", "<u>"} & {page[n : n + 8] for n in range(len(page))}
    assert "<script" not in page and "//" not in page and "&lt;b&gt;" in page
