"""The page of models in a real browser: nothing goes wrong, nothing is fetched, links and filters work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci.report.html import html
from ci.suites.precision import SCHEMES
from provisioning.base.findings import Metric
from tests.support.chromium import Page, page
from tests.support.program_reports import GOOD, reports, row

pytestmark = [pytest.mark.heavy, pytest.mark.needs("chromium"), pytest.mark.timeout(180)]

SHOWN = "[...document.querySelectorAll('.program')].filter((each) => !each.hidden).map((each) => each.id)"


def _anchor(name: str) -> str:
    return f"program-{name}"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(html(reports()), encoding="utf-8")
    with page() as browser:
        browser.seen_as(width=1280)
        browser.open(path)
        yield browser


def test_it_renders_without_a_word_on_the_console_or_a_request(opened: Page) -> None:
    assert opened.ask("document.querySelectorAll('.program').length") == 2
    assert not opened.troubles


def test_every_link_of_the_page_leads_somewhere(opened: Page) -> None:
    links = "[...document.querySelectorAll('a')]"
    broken = links + ".filter((a) => !document.getElementById(a.hash.slice(1))).length"
    # Of the matrix and of the glance two each, and of the one error two: at the top and among the findings.
    assert opened.ask("document.querySelectorAll('a').length") == 6
    assert opened.ask(broken) == 0


def test_a_chip_of_the_matrix_unfolds_its_program(opened: Page) -> None:
    opened.ask(f"document.querySelector('a[href=\"#{_anchor(GOOD)}\"]').click()")
    opened.ask("new Promise((done) => setTimeout(done, 100))")
    opened.ask(f"location.hash = '#{_anchor(GOOD)}'; dispatchEvent(new HashChangeEvent('hashchange'))")
    assert opened.ask(f"document.getElementById('{_anchor(GOOD)}').open") is True


def test_the_filter_keeps_what_has_the_words(opened: Page) -> None:
    opened.ask("document.querySelector('#program-filter').elements.words.value = 'resnet'")
    opened.ask("document.querySelector('#program-filter').dispatchEvent(new Event('input'))")
    assert opened.ask(SHOWN) == [_anchor(GOOD)]
    opened.ask("document.querySelector('#program-filter').reset()")


def test_each_program_has_its_accuracy_as_a_bar_and_its_costs_as_lines(opened: Page) -> None:
    assert opened.ask("document.querySelectorAll('#glance tbody tr').length") == 2
    assert opened.ask("document.querySelectorAll('#glance svg.bar rect.mark').length") == 4
    assert opened.ask("document.querySelectorAll('#glance polyline').length") == 6


def test_a_profile_is_a_tree_of_modules(opened: Page) -> None:
    names = (
        "[...document.querySelectorAll('#profiles details > summary strong')].map((each) => each.textContent)"
    )
    assert opened.ask(names) == ["the model", "blocks", "0", "conv", "1", "head"]


@pytest.mark.parametrize("width", [360, 400, 768, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_screen(opened: Page, width: int, dark: bool) -> None:
    opened.seen_as(width=width, dark=dark)
    assert opened.ask("document.documentElement.scrollWidth") <= width


def test_every_scheme_of_the_matrix_is_seen_without_scrolling(tmp_path: Path) -> None:
    lowered, *_ = reports()
    schemes = SCHEMES
    programs: Metric = {
        f"op_grouped_attention/{scheme}/SSG2115P": row(f"op_grouped_attention/{scheme}/SSG2115P", "pass", "")
        for scheme in schemes
    }
    path = tmp_path / "index.html"
    path.write_text(html([replace(lowered, metrics={"programs": programs})]), encoding="utf-8")
    box = "document.querySelector('#matrix').parentElement"
    with page() as browser:
        browser.seen_as(width=1280)
        browser.open(path)
        assert browser.ask("document.querySelectorAll('#matrix thead th').length") == 1 + len(schemes)
        assert browser.ask(f"{box}.scrollWidth - {box}.clientWidth") == 0
