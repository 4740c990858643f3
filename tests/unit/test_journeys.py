"""What README.md and the pages promise has a proof, and their programs and links are there."""

from __future__ import annotations

import ast
import re

import pytest

from ci.diagnose.rules import ERRORS_PAGE, FAULTS_PAGE, RULES_PAGE, page_of
from ci.inspect import diagnose_verb
from provisioning.base.settings import ROOT, project
from tests.support.journeys import Row, differences, journeys, promised
from tests.support.needs import PACKAGES
from tests.support.sources import nodes, parsed, with_any
from tests.support.typed import run_here

PAGES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
TABLE = journeys()
ROWS = {row.name: row for row in TABLE.row}


def _text(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def test_what_a_page_promises_first_has_a_row() -> None:
    names = [f"{page}: {command}" for page in sorted(PAGES) for command in promised(page, _text(page))]
    missing = [name for name in names if name not in ROWS]
    assert names and not missing, f"tests/journeys.toml needs a row for each of {missing}"


def test_what_a_page_promises_first_is_in_no_story_that_the_ordinary_run_leaves_out_as_long() -> None:
    rows = [ROWS[f"{page}: {command}"] for page in PAGES for command in promised(page, _text(page))]
    proofs = [ROWS[row.same] if row.same else row for row in rows]
    assert not [row.name for row in proofs if row.story and TABLE.story[row.story].long]


def test_the_readme_promises_what_its_table_types() -> None:
    readme = promised("README.md", _text("README.md"))
    assert len(readme) > 8
    assert {"qnn-ci gate --suite models.toml", "qnn-ci run_device"} <= set(readme)
    assert any(
        command.startswith(f"uses: {project().name}/.github/workflows/gate.yml@") for command in readme
    )


def test_each_command_of_ours_beside_that_of_another_tool_has_a_row() -> None:
    page = "docs/start.md"
    _, _, section = _text(page).partition("\n## Coming from other tools\n")
    commands = re.findall("`(qnn-ci [^`]* [^`]*)`", section)
    assert len(commands) > 10
    assert not [command for command in commands if f"{page}: {command}" not in ROWS]


def test_each_row_is_there_once_and_its_page_prints_its_command() -> None:
    assert len(ROWS) == len(TABLE.row)
    assert not [row.name for row in TABLE.row if row.command not in _text(row.page)]


@pytest.mark.parametrize("row", [row for row in TABLE.row if row.test], ids=lambda row: row.name)
def test_a_test_that_a_row_names_is_there_and_in_the_ordinary_run(row: Row) -> None:
    file, *path = row.test.split("::")
    body: list[ast.stmt] = parsed(ROOT / file).body
    marks = [node.value for node in body if isinstance(node, ast.Assign) and _sets_marks(node)]
    for name in path:
        found = [top for top in body if isinstance(top, ast.FunctionDef | ast.ClassDef) and top.name == name]
        assert found, f"{file} has no {name}"
        marks += found[0].decorator_list
        body = found[0].body
    # Of a parametrized test some are samples: those of its parameters that are not marked.
    words = [ast.unparse(mark) for mark in marks if "parametrize" not in ast.unparse(mark)]
    left_out = [word for word in words if "mark.whole" in word or "mark.long" in word]
    assert not left_out, f"{row.test} is not in the ordinary run"


def _sets_marks(statement: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in statement.targets)


PAGE = """\
# A page
```text
qnn-ci is no command of this block
```
```console
$ cd somewhere
$ NAME=x qnn-ci compile net.py:model -o out    # why
$ qnn-ci validate
```
"""


def test_a_pages_first_example_is_the_first_command_of_ours_without_its_comment() -> None:
    assert promised("docs/page.md", PAGE) == ["NAME=x qnn-ci compile net.py:model -o out"]
    assert promised("docs/page.md", "# Words alone\n") == []


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"a": {"b": 1}}, True),
        ({"a": {"b": 2}}, False),
        ({"a": {"b": "> 0"}, "c": [{"d": 2}]}, True),
        ({"a": {"b": "> 1"}}, False),
        ({"c": [{"d": 4}]}, False),
        ({"c": []}, False),
        ({"e": "> 0"}, False),
    ],
)
def test_a_fact_holds_where_the_document_has_it_among_more(expected: object, holds: bool) -> None:
    found = {"a": {"b": 1, "x": 0}, "c": [{"d": 1}, {"d": 2, "y": 0}]}
    assert (differences(expected, found, "x.json") == []) is holds


NAMING = ("pytest.mark.needs", "needs.program")


def test_every_program_that_a_mark_or_a_test_names_has_a_row_in_the_table() -> None:
    named = set()
    for file in with_any((ROOT / "tests").rglob("*.py"), *NAMING):
        for node in nodes(file):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("needs", "program") and ast.unparse(node.func) in NAMING:
                named |= {ast.literal_eval(argument) for argument in node.args}
    assert named and named - set(PACKAGES) == set()


def test_every_promise_names_tests_that_are_there() -> None:
    page = ROOT / "docs" / "environments.md"
    _, _, section = page.read_text(encoding="utf-8").partition("\n## Security\n")
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    promises = [row for row in rows if not row.startswith("| ---")]
    assert promises
    for row in promises:
        tests = re.findall(r"\((\.\./tests/[^)]+)\)", row.rsplit("|", 2)[1])
        assert tests, row


SITE = "https://somebody.example/qnn"


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("lowering-cpu-operator", RULES_PAGE),
        ("qnn-graph-node-not-added", ERRORS_PAGE),
        ("bias-used-twice", FAULTS_PAGE),
    ],
)
def test_each_link_leads_to_an_anchor_of_a_page(
    name: str, page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_SITE", SITE)
    assert run_here(diagnose_verb, name) == 0
    assert f"{SITE}/{page}#{name}" in capsys.readouterr().out
    source = (ROOT / "docs" / page).with_suffix(".md").read_text(encoding="utf-8")
    assert f'<a id="{name}"></a>' in source


@pytest.mark.parametrize("site", ["", "javascript:x", "https://a.example/ <b>"])
def test_what_is_no_address_of_a_site_is_no_link(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_SITE", site)
    assert page_of("lowering-cpu-operator") == ""
