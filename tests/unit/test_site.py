"""The site: how a page is rendered, which links are good, and what may be written over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.inspect import diagnose
from ci.operators.onnx_page import OnnxOperators
from ci.operators.table import Case, Cell, OperatorTable, Result
from ci.site import errors, operators, verb
from ci.site.build import INDEX, INDEX_HEAD, Site, add_errors, check, common, write
from ci.site.markdown import groups, inline, rendered
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Severity
from provisioning.base.rendering.job_summary import markdown
from provisioning.base.rendering.workflow_commands import github_annotations
from provisioning.base.site import page_of
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here

PAGE = """\
# One page

It says `this`: [that](other.md#there).

## A `part` of it, again
## A part of it, again

| a | b |
| --- | --- |
| 1 | <b>2</b> |

```console
$ qnn-ci site <x>
printed
```
"""


@pytest.fixture(autouse=True)
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "shipped_onnx", lambda: OnnxOperators(measured={"SM8550": "x"}))


def cell(result: Result, db: float | None = None, **others: Case) -> Cell:
    return Cell(result, db, others=others)


def table(**cells: Mapping[str, Mapping[str, Cell]]) -> OperatorTable:
    measured = {"SM8650": "QNN v2.49.40", "SM8350": "QNN v2.49.40"}
    return OperatorTable(measured=measured, cells=cells)


def test_headings_have_githubs_anchors_and_links_are_those_of_the_site() -> None:
    page = rendered(PAGE, lambda target: target.replace(".md", ".html"))
    assert (page.title, page.summary) == ("One page", "It says this: that.")
    assert [section.anchor for section in page.sections] == [
        "one-page",
        "a-part-of-it-again",
        "a-part-of-it-again-1",
    ]
    assert 'href="other.html#there"' in page.body and 'id="a-part-of-it-again-1"' in page.body
    assert '<span class="typed">$ qnn-ci site &lt;x&gt;</span>\nprinted' in page.body


def test_the_pages_of_a_table_are_grouped_by_what_they_are_about() -> None:
    rows = "| one | [a `b`](c.md), [d](e.md) |\n| two | [f](g.md) |\n"
    text = f"# x\n\n## All pages\n\n| about | pages |\n| --- | --- |\n{rows}"
    assert groups(text, "All pages") == {"one": [("c.md", "a b"), ("e.md", "d")], "two": [("g.md", "f")]}


def test_words_of_data_are_never_markup() -> None:
    assert str(inline("a <b> `<c>`")) == "a &lt;b&gt; <code>&lt;c&gt;</code>"


@pytest.mark.parametrize(
    "link", ["b.html", "#nowhere", "../index.html", "a/b.html#there", "a/c.html", "picture.png"]
)
def test_a_link_that_leads_nowhere_is_an_error(link: str) -> None:
    good = '<a href="a/b.html#here"></a><a href="https://elsewhere.example/x#y"></a><a href="#result=x"></a>'
    files: dict[str, str | bytes] = {"index.html": good, "a/b.html": '<p id="here"><a href="../index.html">'}
    check(files)
    with pytest.raises(CheckFailed, match=link):
        check({**files, "index.html": f'{good}<img src="{link}">'})


def test_a_checked_site_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {INDEX: f"{INDEX_HEAD}[]", "index.html": '<a href="nowhere.html">'}

    def build() -> dict[str, str]:
        check(files)
        return files

    monkeypatch.setattr("ci.site.build.build", build)
    with pytest.raises(CheckFailed, match=r"nowhere\.html"):
        run_here(verb, "--check", "-o", tmp_path / "site")
    files["index.html"] = '<a href="index.html">'
    assert run_here(verb, "--check", "-o", tmp_path / "site") == 0
    assert not (tmp_path / "site").exists()


def test_only_an_earlier_site_is_replaced(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {INDEX: f"{INDEX_HEAD}[]", "a/b.html": "x"}
    write(files, tmp_path / "site")
    write({INDEX: f"{INDEX_HEAD}[]", "c.html": "y"}, tmp_path / "site")
    assert {path.name for path in (tmp_path / "site").rglob("*")} == {INDEX, "c.html"}
    (tmp_path / "site" / INDEX).write_text("of another")
    with pytest.raises(UsageError):
        write(files, tmp_path / "site")
    assert (tmp_path / "site" / "c.html").is_file()


def test_a_cell_leads_to_its_part_of_the_operators_page_and_says_where_chips_differ() -> None:
    found = table(
        log={
            "SM8650": {"8a8w": cell("whole", 51.2), "fp16": cell("wrong")},
            "SM8350": {"8a8w": cell("cpu")},
        }
    )
    views = {view.place: view for view in operators.views(found)}
    assert {"SM8650", "SM8350", "8a8w", "fp16"} <= views.keys()
    (row,) = views["SM8650"].rows
    seen = {name: entry for name, entry in zip(views["SM8650"].columns, row.cells, strict=True) if entry}
    assert (seen["8a8w"].href, seen["8a8w"].figure, seen["8a8w"].tone) == (
        "operators/log.html#8a8w",
        "51 dB",
        "whole",
    )
    assert (seen["8a8w"].differs, seen["fp16"].differs, row.differs) == (True, False, True)
    (page,) = operators.pages(found)
    eight = next(part for part in page.parts if part.scheme == "8a8w")
    assert [chips.names for chips in eight.chips] == [["SM8650"], ["SM8350"]]
    assert "--flow 8a8w" in eight.commands[0] and page.good == "8a8w"


def test_a_cell_shows_its_least_figure_and_what_else_it_gave() -> None:
    found = table(log={"SM8650": {"8a8w": cell("whole", 51.2, small=Case("wrong", -6))}})
    (row,) = next(view for view in operators.views(found) if view.place == "SM8650").rows
    (seen,) = filter(None, row.cells)
    assert (seen.figure, seen.more, seen.results) == ("51 dB", ["some WRONG"], "whole wrong")
    assert seen.tone == "mixed" and "WRONG: small (-6 dB)" in seen.title
    (data,) = operators.rows(found)
    assert (data["least_db"], data["others"]) == (51.2, "small: WRONG -6 dB")


def test_no_operator_has_the_page_that_the_folders_address_shows() -> None:
    (page,) = operators.pages(table(index={"SM8650": {"8a8w": cell("whole")}}))
    assert page.lane.page(page.name) == page.grid[0].href.partition("#")[0] != "operators/index.html"


def test_chips_that_do_the_same_are_named_together() -> None:
    same = {"8a8w": cell("whole", 51.2)}
    (page,) = operators.pages(table(log={"SM8650": same, "SM8350": same}))
    assert [chips.names for chips in page.parts[0].chips] == [["SM8650", "SM8350"]]


def test_the_data_beside_the_pages_has_every_cell() -> None:
    found = table(log={"SM8650": {"8a8w": cell("whole", 51.2), "fp16": cell("wrong")}})
    rows = operators.rows(found)
    document = json.loads(operators.as_json(found, rows))
    assert [(entry["scheme"], entry["result"]) for entry in document["cells"]] == [
        ("8a8w", "whole"),
        ("fp16", "wrong"),
    ]
    head, *lines = operators.as_csv(rows).splitlines()
    assert head.startswith("lane,operator,chip,scheme,result") and len(lines) == 2


def test_each_failure_has_the_line_of_its_example_without_numbers_and_names() -> None:
    every = errors.failures()
    assert all(failure.message and len(failure.message) <= 80 for failure in every)
    assert len({failure.anchor for failure in every}) == len(every)
    versions = {failure.id: failure.versions for failure in every}
    assert versions["per-channel-input-channels"] == "qnn >=2.47"


def test_a_failure_of_several_causes_says_so() -> None:
    """The page told "there is no such file, or no right to read it" as the one cause."""
    document = {failure["id"]: failure["several"] for failure in json.loads(errors.as_json())["failures"]}
    assert document["header-missing"] and not document["qurt-header-missing"]
    site = Site(common=common())
    add_errors(site)
    several = _article(str(site.files["errors/building.html"]), "header-missing")
    one = _article(str(site.files["errors/qnn.html"]), "qurt-header-missing")
    assert "one of several causes" in several and one and "one of several causes" not in one


def _article(page: str, name: str) -> str:
    return page.partition(f' id="{name}">')[2].partition("</article>")[0]


def test_a_number_has_all_its_spellings() -> None:
    numbers = {number.anchor: number for number in errors.numbers()}
    assert numbers["qnn-14001"].spellings == ["14001", "0x36b1"]
    code = next(number for number in numbers.values() if number.of == "FastRPC")
    assert len(code.spellings) >= 3 and code.spellings[2].startswith("-")


def test_findings_and_diagnose_link_to_the_site_that_the_user_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = StageRun("test_lowering", "wheels", "x86_64-linux", "qnn-ci test_lowering")
    stage.add("lowering-cpu-operator", Severity.ERROR, "net", "stays on the CPU")
    report = stage.finish()
    place = "https://somebody.example/qnn/errors.html#lowering-cpu-operator"
    for site, linked in (("", False), ("https://somebody.example/qnn/", True), ("javascript:x", False)):
        monkeypatch.setenv("QNN_CI_SITE", site)
        assert page_of("lowering-cpu-operator") == (place if linked else "")
        assert (place in github_annotations(report)) is linked
        assert (f"]({place})" in markdown([report])) is linked
        assert run_here(diagnose, "lowering-cpu-operator") == 0
        assert (f"page:  {place}" in capsys.readouterr().out) is linked
