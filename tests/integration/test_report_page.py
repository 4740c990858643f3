"""The page of models in a real browser: nothing goes wrong, nothing is fetched, links and filters work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.report.page import html
from tests.support.browser import NEEDS
from tests.support.browser import browse as in_browser
from tests.support.program_reports import GOOD, SPEAKER, reports, speaker

pytestmark = [pytest.mark.heavy, NEEDS, pytest.mark.timeout(180)]

WIDTHS = (360, 400, 768, 1400)
ANCHOR = f"executorch-{GOOD}"
QUESTIONS = """<!DOCTYPE html><html><body><script>
(async () => {
  const opened = async (width) => {
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 900px; border: 0`;
    frame.src = "/page.html";
    await new Promise((done) => { frame.onload = done; document.body.append(frame); });
    return frame.contentWindow;
  };
  const seen = {widths: {}};
  for (const width of WIDTHS)
    seen.widths[width] = (await opened(width)).document.documentElement.scrollWidth;
  const page = await opened(1280);
  const all = (selector) => [...page.document.querySelectorAll(selector)];
  seen.programs = all(".program").length;
  seen.links = all("a").length;
  seen.broken = all("a").filter((a) => !page.document.getElementById(a.hash.slice(1))).length;
  const [filter] = all("#program-filter");
  if (filter) {
    filter.elements.words.value = "resnet";
    filter.dispatchEvent(new Event("input"));
    seen.filtered = all(".program").filter((each) => !each.hidden).map((each) => each.id);
    filter.reset();
  }
  const link = all("a").find((a) => a.hash === "#ANCHOR");
  if (link) link.click();
  await new Promise((done) => setTimeout(done, 100));
  seen.opened = all("details[open]").map((each) => each.id);
  const texts = (selector) => all(selector).map((each) => each.textContent.trim());
  seen.parts = all("#models .figure.bad").length;
  seen.figures = texts("#models .figure");
  document.body.textContent = JSON.stringify(seen);
})();
</script></body></html>
"""
"""Asks the page in frames of several widths, and becomes the answers."""


def browse(page: str, folder: Path) -> dict[str, Any]:
    """The answers of a headless Chromium, what it wrote on the console, and what it requested."""
    questions = QUESTIONS.replace("WIDTHS", json.dumps(WIDTHS)).replace("#ANCHOR", f"#{ANCHOR}")
    return in_browser(questions, {"page.html": page}, folder)


def test_the_page_works_and_fits_the_screen(tmp_path: Path) -> None:
    seen = browse(html(reports()), tmp_path)
    # The browser itself asks for the icon.
    assert (seen["console"], seen["requested"] - {"/favicon.ico"}) == ([], {"/", "/page.html"})
    assert seen["programs"] == 2
    # Those of the matrix: the error stands at its program.
    assert (seen["links"], seen["broken"]) == (2, 0)
    assert seen["filtered"] == [ANCHOR] and ANCHOR in seen["opened"]
    assert all(shown <= int(width) for width, shown in seen["widths"].items()), seen["widths"]


def test_a_language_model_has_its_parts_and_its_size(tmp_path: Path) -> None:
    seen = browse(html([speaker()]), tmp_path)
    assert (seen["console"], seen["broken"]) == ([], 0)
    assert seen["parts"] == 1
    for figure in (
        "1.26 MB (no baseline)",
        "✗ logits -2.3 dB (at least 30.0), 3.0 on the CPU",
    ):
        assert figure in seen["figures"], seen["figures"]
    assert f"llm-{SPEAKER}" in seen["opened"]
    assert all(shown <= int(width) for width, shown in seen["widths"].items()), seen["widths"]
