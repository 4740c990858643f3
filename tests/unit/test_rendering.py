"""Reports rendered: each consumer gets every text back as it was, and never a pass that was none."""

from __future__ import annotations

import functools
import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ci.report.junit import junit
from ci.report.page import cell, markdown
from ci.report.sarif import sarif
from ci.report.summary import command, github_annotations, worst
from ci.suite.options import matcher
from provisioning.base.commands import session
from provisioning.base.findings import Artifact, Finding, Outcome, Place, Report, Severity
from provisioning.base.foreign import visible
from provisioning.base.places import Places
from provisioning.base.rendering import DID_NOT_RUN, alike_in_one, console
from provisioning.base.stage_run import StageRun
from tests.support.program_reports import report_of

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

# Everything a report file can hold, which is all of JSON: controls, lone surrogates, any script.
TEXT = st.one_of(
    st.text(st.characters(), max_size=60),
    st.text(st.sampled_from("|\\`*_<>&%:,\r\n\x1b[]\u202e'\"#~$é日"), max_size=20),
)
PLACES = st.none() | st.builds(Place, TEXT.filter(bool), st.integers(1, 99), st.integers(0, 99))
FINDINGS = st.builds(Finding, TEXT, st.sampled_from(Severity), TEXT, TEXT, TEXT, PLACES)

_report = functools.partial(report_of, "validate", outcome=Outcome.FAIL)

REPORTS = st.builds(
    lambda stage, findings, outcome, command: _report(
        *findings, outcome=outcome, stage=stage, command=command
    ),
    TEXT,
    st.lists(FINDINGS, max_size=5),
    st.sampled_from(Outcome),
    TEXT,
)

BAD = Finding("elf.arch", ERROR, "lib/a.so", "holds v79, expected v75", "provision it again")
SKIPPED = _report(Finding(DID_NOT_RUN, NOTE, "validate", "left out by --skip", ""), outcome=Outcome.ERROR)
ABSENT = _report(Finding(DID_NOT_RUN, ERROR, "validate", "there is no report", ""), outcome=Outcome.ERROR)


@given(st.text(st.characters()))
def test_visible_text_can_be_encoded_and_steers_no_terminal(text: str) -> None:
    shown = visible(text).encode().decode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)


@pytest.mark.parametrize(
    ("others", "outcome"),
    [
        ([], Outcome.PASS),
        ([_report(outcome=Outcome.FAIL), _report(outcome=Outcome.ERROR)], Outcome.ERROR),
        ([_report(outcome=Outcome.FAIL), ABSENT], Outcome.FAIL),
        ([ABSENT], Outcome.ERROR),
        ([SKIPPED], Outcome.PASS),
    ],
)
def test_the_worst_outcome_decides_and_a_stage_that_did_not_run_is_no_pass(
    others: list[Report], outcome: Outcome
) -> None:
    assert worst([_report(outcome=Outcome.PASS), *others]) is outcome


@given(REPORTS)
def test_no_text_of_a_report_steers_the_terminal(report: Report) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", console(report, colour=False))


def _suites(reports: list[Report]) -> ElementTree.Element:
    return ElementTree.fromstring(junit(reports).encode())


@given(st.lists(REPORTS, max_size=3))
def test_junit_is_well_formed_and_counts_its_cases(reports: list[Report]) -> None:
    top = _suites(reports)
    assert len(top.findall("testsuite")) == len(reports)
    for element in (top, *top):
        assert int(element.get("tests", "")) == len(element.findall(".//testcase"))
        for attribute, tag in (("failures", "failure"), ("errors", "error")):
            assert int(element.get(attribute, "")) == len(element.findall(f".//{tag}"))
    for suite in top:
        assert int(suite.get("skipped", "")) == len(suite.findall(".//skipped"))


RESULT = ("failure", "error", "skipped")
OUTPUT = ("system-out", "system-err")
JENKINS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package"},
        {"testsuite", "properties", "testcase", *OUTPUT},
    ),
    "testcase": ({"name"}, {"time", "classname"}, {*RESULT, *OUTPUT}),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    **dict.fromkeys(RESULT, (set(), {"type", "message"}, set())),
    **dict.fromkeys(OUTPUT, (set(), set(), set())),
}
"""By element: the attributes that it must and may have, and its children, as Jenkins' xUnit plugin says."""


@given(st.lists(REPORTS, max_size=3))
def test_jenkins_takes_junit(reports: list[Report]) -> None:
    for element in _suites([*reports, at("net.py:15:9")]).iter():
        must, may, children = JENKINS[element.tag]
        assert must <= {*element.keys()} <= must | may, element.tag
        assert {child.tag for child in element} <= children, element.tag
        if element.tag in ("testsuites", "testsuite"):
            assert re.fullmatch(r"[0-9]*(\.[0-9]*)?", element.get("time", ""))
        if element.tag != "testsuites" and children:
            assert not (element.text or "").strip(), "text beside elements"


@pytest.mark.parametrize(
    ("report", "result"),
    [
        (_report(outcome=Outcome.PASS), []),
        (_report(outcome=Outcome.FAIL), ["failure"]),
        (_report(outcome=Outcome.ERROR), ["error"]),
        (ABSENT, ["error"]),
        (SKIPPED, ["skipped"]),
    ],
)
def test_junit_has_a_case_for_the_stage_itself(report: Report, result: list[str]) -> None:
    (suite,) = _suites([report])
    assert [part.tag for part in suite.findall("testcase")[0]] == result


def _check_sarif(text: str) -> list[dict[str, Any]]:
    """What GitHub's code scanning requires of a log; returns the results."""
    (run,) = json.loads(text.encode())["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    results: list[dict[str, Any]] = run["results"]
    for result in results:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["region"]["startLine"] >= 1
        assert re.fullmatch(r"[\w.~%/+-]+", location["physicalLocation"]["artifactLocation"]["uri"], re.ASCII)
    return results


@given(st.lists(REPORTS, max_size=3))
def test_sarif_has_the_required_structure(reports: list[Report]) -> None:
    text = sarif(reports)
    stages = json.loads(text)["runs"][0]["invocations"]
    results = _check_sarif(text)
    elsewhere = [note for stage in stages for note in stage["toolExecutionNotifications"]]
    findings = [finding for report in reports for finding in report.findings]
    assert len(results) == sum(finding.place is not None for finding in findings)
    assert len(results) + len(elsewhere) == len(findings)


def _parsed(line: str) -> tuple[str, dict[str, str], str]:
    """As the runner reads a command: properties split at commas, then unescaped."""
    match = re.fullmatch(r"::(\w+)(?: ([^:]*))?::(.*)", line)
    assert match
    properties = dict(pair.split("=", 1) for pair in (match[2] or "").split(",") if pair)
    unescape = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}

    def plain(text: str) -> str:
        return re.sub("%0D|%0A|%3A|%2C|%25", lambda match: unescape[match.group()], text)

    return match[1], {name: plain(value) for name, value in properties.items()}, plain(match[3])


@given(TEXT, TEXT.filter(bool))
@example("100 %0A", "%3A%2C%25")
def test_any_text_survives_a_workflow_command(message: str, title: str) -> None:
    assert _parsed(command("error", message, title=title)) == ("error", {"title": title}, message)


@given(TEXT)
def test_any_text_survives_a_markdown_cell(text: str) -> None:
    shown = cell(text)
    assert not re.search(r"[|`*\[\]\n\\]|<(?!br>)", shown)
    assert html.unescape(shown.replace("<br>", "\n")) == visible(text).strip()


@pytest.mark.parametrize(
    "text",
    ["_all_ and __all__", "a_b _c", "**b**", "https://evil.example", "www.evil.example", "#1", "![a](b)"],
)
def test_a_markdown_cell_is_text_and_nothing_else(text: str) -> None:
    """GitHub makes links of addresses, too, also where Markdown makes none."""
    table = f"| a |\n| --- |\n| {cell(text)} |\n"
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(table)
    (inline,) = [token for token in tokens if token.type == "inline" and token.content != "a"]
    children = inline.children or []
    assert "".join(token.content for token in children) == text
    assert {token.type for token in children} <= {"text", "text_special"}
    assert not re.search(r"://|www\.|#\d(?!\d*;)|@", cell(text))


def test_names_paths_and_commands_are_plain_in_a_markdown_cell() -> None:
    plain = "qnn-ci test_lowering --suite ci/models.toml -k net_gelu/8a8w/SM8650 (1 of 2, 3.5 dB)"
    assert cell(plain) == plain


@given(st.lists(REPORTS, min_size=1, max_size=3))
def test_a_markdown_table_keeps_its_columns(reports: list[Report]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", markdown(reports), re.MULTILINE)
    assert tables
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_a_summary_too_long_for_github_is_cut_and_says_by_how_much() -> None:
    many = _report(*[replace(BAD, subject=f"s{i}", message="日" * 100) for i in range(5000)])
    text = markdown([many])
    left_out = re.search(r"\*\*([\d,]+) rows left out", text)
    assert len(text.encode()) < 1024 * 1024
    assert left_out
    assert int(left_out[1].replace(",", "")) + text.count("\n| 🔴 |") == 5000


def at(subject: str, message: str = "message") -> Report:
    place = Place.read(subject)
    return _report(Finding("parity-missing-in-buck", ERROR, subject, message, "fix", place))


def test_a_job_has_its_ten_worst_findings_as_annotations_and_says_how_many_more_there_are() -> None:
    notes = tuple(Finding("a-note", NOTE, f"{number}", "fine", "") for number in range(20))
    errors = tuple(Finding("an-error", ERROR, f"{number}", "bad", "") for number in range(3))
    lines = github_annotations([_report(*notes, *errors), _report(*errors)]).splitlines()
    assert [line.replace("::", " ").split()[0] for line in lines] == ["error"] * 3 + ["notice"] * 7
    assert "14 more" in lines[-1]


def test_a_job_s_summary_begins_with_the_models_and_their_figures() -> None:
    row: dict[str, Any] = {
        "verdict": "fail",
        "figures": {"sqnr_db": 20.5},
        "delegates": 1,
        "cpu_operators": 2,
    }
    rows: dict[str, Any] = {"good/8a8w/SM8650": {"verdict": "pass"}, "net/8a8w/SM8650": row}
    text = markdown([_report(stage="test_onnx", outcome=Outcome.FAIL, metrics={"programs": rows})])
    shown = re.sub(r"&#(\d+);", lambda code: chr(int(code[1])), text).splitlines()
    assert shown[0] == "## ❌ net 8a8w failed, 1 passed"
    assert shown[4] == "| ❌ | net/8a8w/SM8650 | 1 delegate, 2 on the CPU, 20.5 dB |"
    assert shown[5].startswith("| ✅ | good/8a8w/SM8650 |")


def test_sarif_tells_two_findings_of_one_line_apart_and_knows_one_that_moved() -> None:
    first = at("ci/BUCK:3", "a.cpp")
    reports = [first, at("ci/BUCK:3", "b.cpp"), replace(first, target="android"), first]
    fingerprints, (moved,) = (
        [str(result["partialFingerprints"]) for result in json.loads(sarif(run))["runs"][0]["results"]]
        for run in (reports, [at("ci/BUCK:9", "a.cpp")])
    )
    assert moved == fingerprints[0] and len({*fingerprints}) == len(reports)


def test_every_rendering_for_a_machine_has_the_place() -> None:
    report = at("net.py:15:9")
    assert "file=net.py,line=15,col=9," in github_annotations([report])
    beside = replace(report, findings=(replace(report.findings[0], subject="net"),))
    (failure,) = _suites([beside]).findall(".//testcase[@name='net']/failure")
    assert (failure.text or "").startswith("net.py:15:9\n")
    for found, region in (
        (report, {"startLine": 15, "startColumn": 9}),
        (at("net.py:44"), {"startLine": 44}),
    ):
        (result,) = json.loads(sarif([found]))["runs"][0]["results"]
        place = {"artifactLocation": {"uri": "net.py"}, "region": region}
        assert result["locations"] == [{"physicalLocation": place}]
    assert "file=" not in github_annotations([at("nowhere")])


def test_of_two_suites_with_a_case_of_one_name_each_has_its_own_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, before in (("one.toml", ""), ("two.toml", "\n\n")):
        (tmp_path / name).write_text(f"schema = 2{before}\n[case.net]\n")
    typed = "qnn-ci test_lowering --suite one.toml --suite two.toml"
    stage = StageRun("test_lowering", "wheels", "x86_64-linux", typed)
    stage.suite_of = {"net/fp16/SM8650": tmp_path / "one.toml", "net/8a8w/SM8650": tmp_path / "two.toml"}
    for name in stage.suite_of:
        stage.add("a-rule", ERROR, name, "message")
    places = [str(finding.place) for finding in stage.finish(provisional=True).findings]
    assert places == ["one.toml:2", "two.toml:4"]


@pytest.mark.parametrize("beside", [False, True], ids=["own repository", "beside the toolkit"])
def test_a_finding_is_at_a_line_that_the_users_repository_has_or_nowhere(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "source"
    (repository / "ci").mkdir(parents=True)
    (repository / ".git").mkdir()
    (repository / "ci/models.toml").write_text('schema = 2\n[case.net]\n\n[case."other net"]\n')
    (repository / "ci/net.py").touch()
    (repository / "ci/ci").mkdir()
    (repository / "ci/ci/net.py").touch()
    (tmp_path / "up.py").touch()
    folder = tmp_path / "toolkit" if beside else repository
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    suite = "../source/ci/models.toml" if beside else "ci/models.toml"

    def place(subject: str, source: str = "", typed: str = f"nox -s gate -- --suite {suite}") -> str:
        found = Finding("a-rule", ERROR, subject, "message", "fix", Place.read(source))
        places = Places.of(typed)
        once = places.located(found)
        assert places.located(once) == once
        return str(once.place or "")

    assert place("net/8a8w/SM8650") == "ci/models.toml:2"
    assert place("other net/8a8w/SM8650") == "ci/models.toml:4"
    assert place("packages") == "ci/models.toml:1"
    for source in ("net.py:15:9", "ci/net.py:15:9", f"{repository}/ci/net.py:15:9"):
        assert place("net/8a8w/SM8650", source) == "ci/net.py:15:9"
    raised = Finding("a-rule", ERROR, "net/8a8w/SM8650", "net:f raises ValueError: x (ci/net.py:15)", "")
    assert str(Places.of(f"nox -s gate -- --suite {suite}").located(raised).place) == "ci/net.py:15"
    for source in ("gone.py:15", f"{tmp_path}/up.py:3", "../up.py:3", "../../up.py:3", "/etc/hosts:1"):
        assert place("net/8a8w/SM8650", source) == "ci/models.toml:2"
        assert place(source, typed="nox -s validate") == place("libQnnHtp.so", typed="") == ""
    tree = tmp_path / "executorch"
    (tree / "backends").mkdir(parents=True)
    (tree / "backends/BUCK").touch()
    assert place("backends/BUCK:7", typed=f"nox -s buck_parity -- --executorch {tree}") == "backends/BUCK:7"


RISKY = Finding("paths.order", WARNING, "LD_LIBRARY_PATH", "is in a wrong order", "")
FACT = Finding("versions.cmake", NOTE, "cmake", "4.1.2", "")


@pytest.mark.parametrize(
    "text", ["\x1b[2Jgone", "::error::planted", "a\n  ::add-mask::b", "x ##[error]planted"]
)
def test_no_text_of_a_report_steers_who_reads_its_junit(text: str) -> None:
    found = Finding("a-rule", Severity.ERROR, text, text, text)
    shown = junit([replace(_report(), command=text, findings=(found,))])
    assert not re.search(r"^\s*::|##\[|\x1b", re.sub("<[^>]*>", "\n", shown), re.MULTILINE)


def test_junit_shows_errors_as_failures_and_warnings_as_skipped() -> None:
    (suite,) = _suites([_report(BAD, RISKY, FACT)])
    results = {case.get("classname"): [part.tag for part in case] for case in suite.findall("testcase")}
    assert results == {
        "validate": ["failure"],
        "validate.elf.arch": ["failure"],
        "validate.paths.order": ["skipped"],
    }
    assert suite.findtext("system-out") == "versions.cmake: cmake: 4.1.2"


def test_the_table_of_files_fits_its_width() -> None:
    path = "/disk/somebody/.cache/qnn-ci/installed/ec6987115a41/dist/x86_64-linux/wheel/lib/libexecutorch.so"
    report = report_of("build_runner", artifacts=(Artifact("library", path, "ab" * 32, 437_000),))
    lines = console(report, colour=False, width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.strip() for line in lines if "libexecutorch" in line] == [path]


def test_commands_that_differ_in_the_program_alone_are_one_command() -> None:
    def warned(program: str) -> Finding:
        fix = session("test_lowering", "-k", program, "--accept")
        return Finding("cost-no-baseline", Severity.WARNING, program, "no accepted result", fix)

    names = ["net/8a8w/SM8650", "net/fp16/SM8650"]
    other = Finding(
        "cost", Severity.WARNING, "net/8a8w/SM8650", "more", session("test_lowering", "-k", "net")
    )
    merged, alone = alike_in_one([warned(names[0]), other, warned(names[1])])
    assert alone is other and all(name in merged.subject for name in names)
    chooses = matcher([merged.command[merged.command.index("-k") + 1]])
    assert [chooses(name) for name in (*names, "net/16a8w/SM8650")] == [True, True, False]
