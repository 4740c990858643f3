"""The page of models in a real browser: nothing goes wrong, nothing is fetched, links and filters work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.report.page import html
from tests.support.browser import NEEDS, browse
from tests.support.program_reports import BAD, GOOD, SPEAKER, reports, speaker

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
  filter.elements.words.value = "resnet";
  filter.dispatchEvent(new Event("input"));
  seen.filtered = all(".program").filter((each) => !each.hidden).map((each) => each.id);
  filter.reset();
  all("a").find((a) => a.hash === "#ANCHOR").click();
  await new Promise((done) => setTimeout(done, 100));
  seen.opened = all("details[open]").map((each) => each.id);
  document.body.textContent = JSON.stringify(seen);
})();
</script></body></html>
"""
"""Asks the page in frames of several widths, and becomes the answers."""


def test_the_page_works_and_fits_the_screen(tmp_path: Path) -> None:
    questions = QUESTIONS.replace("WIDTHS", json.dumps(WIDTHS)).replace("#ANCHOR", f"#{ANCHOR}")
    page = html([*reports(), speaker()])
    seen = browse(questions, {"page.html": page}, tmp_path)
    # The browser itself asks for the icon.
    assert (seen["console"], seen["requested"] - {"/favicon.ico"}) == ([], {"/", "/page.html"})
    # Those of the matrix: the errors stand at their programs.
    assert (seen["programs"], seen["links"], seen["broken"]) == (3, 3, 0)
    assert seen["filtered"] == [ANCHOR]
    # What failed is open from the start, the other by the link.
    assert seen["opened"] == [f"executorch-{BAD}", f"llm-{SPEAKER}", ANCHOR]
    assert all(shown <= int(width) for width, shown in seen["widths"].items()), seen["widths"]
