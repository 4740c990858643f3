"""A suite of each lane comes to its report, whatever becomes of its program."""

from __future__ import annotations

import pytest

from ci.github.matrix import lane_to_split, matrix_of
from ci.lanes.registry import lane_named
from ci.report.changes import changes_of, reports_in
from ci.report.collect import collect
from ci.report.page import html
from ci.suite.accepted import load_baseline
from ci.suite.lane import AnyLane
from ci.suite.options import choice_of
from provisioning.base.command_line import Verb, module_of
from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.parser import Parser
from provisioning.base.rendering import verdict
from tests.conformance.examples import DIES, FAILS, LATE, PASSES, Example, Folder

NAME = "net"


@pytest.fixture(autouse=True)
def _one_template(one_template: None) -> None:
    """Imports are made once."""


def stage_of(lane: str) -> str:
    return lane_named(lane).head.stage_names[0]


def ran(lane: AnyLane, folder: Folder, *, timeout: float = 60, accept: bool = False) -> tuple[int, Report]:
    stage = lane.head.stage_names[0]
    code = lane.run_suite(stage, folder.options(timeout=timeout, accept=accept))
    return code, Report.read(folder.selection.reports / f"{stage}.json")


def errors_in(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.ERROR]


def row_of(report: Report) -> dict[str, object]:
    programs = report.metrics["programs"]
    assert isinstance(programs, dict)
    (row,) = programs.values()
    assert isinstance(row, dict)
    return {**row}


def test_a_program_that_passes_is_cached_and_shown_everywhere(
    example: Example, folder: Folder, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = example.stand_in(monkeypatch, folder, PASSES)
    assert (ran(stand_in, folder)[0], verdict(ran(stand_in, folder)[1])) == (0, "pass")
    code, report = ran(stand_in, folder)
    row, reports = row_of(report), folder.selection.reports
    assert (code, row["cached"], row["verdict"]) == (0, True, "pass")
    page = html(collect(reports))
    assert NAME in page and str(row["command"]).rpartition(" -k ")[2].split()[0] in page
    changes = changes_of(reports_in(reports, folder.path), reports_in(reports, folder.path))
    assert (changes.compared, changes.worse) == (1, 0)


@pytest.mark.parametrize("outcome", [FAILS, DIES])
def test_a_program_that_fails_or_dies_is_an_error_with_a_fix_and_is_not_cached(
    example: Example, folder: Folder, lane: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = example.stand_in(monkeypatch, folder, outcome)
    for _ in range(2):
        code, report = ran(stand_in, folder)
        assert code == 1 and row_of(report)["verdict"] == "fail"
        assert not row_of(report).get("cached")
        (error, *_) = errors_in(report)
        assert error.subject.startswith(NAME) and error.message and error.fix


def test_a_program_that_comes_to_no_end_is_ended(
    example: Example, folder: Folder, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = ran(example.stand_in(monkeypatch, folder, LATE), folder, timeout=1)
    # What waited for the processor of a busy machine counts against no program.
    assert code in (1, 3)
    assert any("no result after" in finding.message for finding in errors_in(report))


def test_it_is_listed_and_split_into_jobs(
    example: Example,
    folder: Folder,
    lane: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand_in = example.stand_in(monkeypatch, folder, PASSES)
    options = folder.options(listed=True)
    assert stand_in.run_suite(stage_of(lane), options) == 0
    assert capsys.readouterr().out.startswith(f"{NAME}/")
    assert lane_to_split([folder.suite]) == lane
    jobs = stand_in.chosen_jobs(options.choice, options.selection)
    assert matrix_of(jobs, 4, [])["include"][0]["programs"] == 1


def test_what_is_accepted_is_its_baseline(
    example: Example, folder: Folder, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = example.stand_in(monkeypatch, folder, PASSES)
    assert ran(stand_in, folder, accept=True)[0] == 0
    accepted = load_baseline(folder.suite, "wheels", lane).programs
    # A language model has nothing to accept: its command has no such flag.
    assert bool(accepted) == (lane != "llm")


def test_a_printed_command_parses_back(
    example: Example, folder: Folder, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ran(example.stand_in(monkeypatch, folder, PASSES), folder)[1]
    head = lane_named(lane).head
    words = str(row_of(report)["command"]).partition(f" {head.stage_names[0]} ")[2].split()
    parser = Parser(head.stage_names[0])
    stage = head.stages[0]
    module_of(Verb(stage.verb, stage.summary)).configure(parser)
    args = parser.parse_args([word for word in words if word != "--"])
    choice = choice_of(args)
    assert choice.suites == (folder.suite,) and choice.words[0].startswith(f"{NAME}/")
