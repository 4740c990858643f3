"""The site in a real browser: it fits a phone, search and filters work, axe blames nothing."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.site import verb
from ci.site.build import build
from provisioning.base.settings import DEFAULT_SOC
from tests.support.browser import NEEDS
from tests.support.browser import browse as in_browser
from tests.support.typed import run_here

pytestmark = [pytest.mark.heavy, NEEDS, pytest.mark.timeout(300)]

GRID, OPERATOR = f"operators/on-{DEFAULT_SOC}.html", "operators/softmax.html"
PAGES = (
    "index.html",
    "docs/github.html",
    GRID,
    OPERATOR,
    "errors.html",
    "errors/qnn.html",
    "faults.html",
    "docs/accuracy.html",
)
SEARCHED = {
    "softmax": OPERATOR,
    "14001": "errors.html#qnn-14001",
    "datatypes-mismatch": "errors/qnn.html#datatypes-mismatch",
    "calibrate": "docs/",
    "vtcm": "",
}
QUESTIONS = """<!DOCTYPE html><html lang="en"><body><script>
(async () => {
  const seen = {widths: {}, blamed: [], searched: {}, overflowing: []};
  const opened = async (page, width) => {
    document.body.replaceChildren();
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 900px; border: 0`;
    frame.src = `/${page}`;
    await new Promise((done) => { frame.onload = done; document.body.append(frame); });
    return frame.contentWindow;
  };
  const script = (page, source) => new Promise((done) => {
    const element = page.document.createElement("script");
    element.src = source;
    element.onload = done;
    page.document.head.append(element);
  });
  for (const name of PAGES)
    for (const width of [360, 1280]) {
      const page = await opened(name, width);
      seen.widths[`${name} ${width}`] = page.document.documentElement.scrollWidth - width;
      const blocks = [...page.document.querySelectorAll("pre")];
      const over = blocks.filter((pre) => pre.scrollWidth > pre.clientWidth);
      seen.overflowing.push(...over.map((pre) => `${name} ${width}: ${pre.textContent}`));
      await script(page, "/axe.js");
      // Of a grid its first rows are as all others.
      for (const row of [...page.document.querySelectorAll(".grid tbody tr, .entry")].slice(30)) row.remove();
      const found = await page.axe.run(page.document, {resultTypes: ["violations"]});
      const words = (each) => `${name} ${width}: ${each.id} ${each.nodes[0].html}`;
      seen.blamed.push(...found.violations.map(words));
    }
  const page = await opened("index.html", 1280);
  const input = page.document.querySelector("form.search input");
  for (const words of WORDS) {
    page.document.querySelector("#found").replaceChildren();
    input.value = words;
    input.dispatchEvent(new Event("input"));
    for (let n = 0; n < 100 && !page.document.querySelector("#found a"); n++)
      await new Promise((done) => setTimeout(done, 100));
    seen.searched[words] = page.document.querySelector("#found a")?.getAttribute("href");
  }
  const grid = await opened("GRID#words=softmax&result=wrong", 1280);
  const shown = () =>
    [...grid.document.querySelectorAll(".grid tbody tr:not([hidden]) th")].map((th) => th.textContent);
  seen.linked = shown();
  const form = grid.document.querySelector("form.finder");
  form.elements.words.value = "avgpool";
  form.elements.result.value = "";
  form.dispatchEvent(new Event("input"));
  seen.filtered = shown();
  seen.hash = grid.location.hash;
  seen.tab = grid.document.querySelector(".tabs a:not([aria-current])").hash;
  const head = grid.document.querySelector(".grid thead th");
  grid.document.querySelector(".grid").scrollTo(0, 9999);
  form.elements.words.value = "";
  form.dispatchEvent(new Event("input"));
  grid.document.querySelector(".grid").scrollTo(300, 4000);
  const box = grid.document.querySelector(".grid").getBoundingClientRect();
  seen.sticky = Math.abs(head.getBoundingClientRect().top - box.top) < 3;
  // A failure's text is on the page of its program.
  const failure = await opened("errors.html#datatypes-mismatch", 1280);
  for (let n = 0; n < 100 && !failure.location.pathname.includes("/errors/"); n++)
    await new Promise((done) => setTimeout(done, 100));
  seen.led = failure.location.pathname + failure.location.hash;
  // A rule without a row of its own is explained by the row that stands for it.
  const errors = await opened("errors.html#lint-mypy", 1280);
  const row = errors.document.getElementById("lint-*").getBoundingClientRect();
  seen.row = row.top > -5 && row.top < 900;
  document.body.textContent = JSON.stringify(seen);
})();
</script></body></html>
"""
"""Asks pages in frames, and becomes the answers."""


def browse(files: Mapping[str, str | bytes], folder: Path, *flags: str) -> dict[str, Any]:
    """The answers of a headless Chromium, what it wrote on the console, and what was not there."""
    questions = QUESTIONS.replace("PAGES", json.dumps(PAGES)).replace("GRID", GRID)
    questions = questions.replace("WORDS", json.dumps([*SEARCHED]))
    axe = importlib.resources.files("axe_core_python") / "axe.min.js"
    every = {**files, "axe.js": axe.read_text(encoding="utf-8")}
    seen = in_browser(questions, every, folder, *flags, milliseconds=200000)
    # The browser itself asks for the icon of the page with the questions.
    lacking = seen["requested"] - {f"/{name}" for name in every} - {"/", "/favicon.ico"}
    return {**seen, "lacking": lacking}


@pytest.mark.long("opens each kind of page in a browser, twice")
def test_the_site_works_in_a_browser_and_on_a_phone(tmp_path: Path) -> None:
    seen = browse(build(), tmp_path)
    assert (seen["console"], seen["lacking"], seen["blamed"]) == ([], set(), [])
    assert {name: over for name, over in seen["widths"].items() if over > 0} == {}
    assert all(seen["searched"].values())
    assert {words: place for words, place in seen["searched"].items() if SEARCHED[words] not in place} == {}
    assert seen["overflowing"] == []
    # A link with a filter shows what it names; typing changes the address, and other views keep the filter.
    assert "softmax" in seen["linked"] and all("softmax" in name for name in seen["linked"])
    assert len(seen["filtered"]) > 3 and all("avgpool" in name for name in seen["filtered"])
    assert seen["hash"] == seen["tab"] == "#words=avgpool"
    assert seen["sticky"] and seen["row"]
    assert seen["led"] == "/errors/qnn.html#datatypes-mismatch"


def test_the_command_writes_it_where_the_user_says_and_no_page_is_larger_than_500_kb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(verb, "-o", tmp_path / "site") == 0
    assert str(tmp_path / "site" / "index.html") in capsys.readouterr().out
    page = (tmp_path / "site" / OPERATOR).read_text(encoding="utf-8")
    for shown in ("SM8850", "faults.html#small-values-16-bit", "--flow 16a8w", "QNN v2."):
        assert shown in page, shown
    sizes = {path: path.stat().st_size for path in (tmp_path / "site").rglob("*.html")}
    assert len(sizes) > 9 and {path: size for path, size in sizes.items() if size > 500_000} == {}
    index = (tmp_path / "site" / "llms.txt").read_text(encoding="utf-8")
    assert "errors.json" in index and "docs/model.html" in index
