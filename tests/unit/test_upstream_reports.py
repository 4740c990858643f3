"""Every test that upstream should hear of has its report."""

from __future__ import annotations

import pytest

from ci.lanes.upstream import upstream_reports
from ci.lanes.upstream.ledger import ExpectedTests, load_ledger
from ci.lanes.upstream.upstream_reports import REPORTS, Reports, UpstreamReport
from provisioning.base.documents import load

REPORTED = ("failed", "dies", "wrong", "crash", "memory", "bad_test")


@pytest.mark.parametrize(
    "suite",
    [
        "operators",
        "values",
        "delegate",
        "utils",
        "passes",
        "models",
        "zoo",
        "rework-op",
        "rework-feature",
        "rework-utils",
    ],
)
def test_each_entry_of_the_ledger_that_is_no_choice_of_upstream_has_a_report(suite: str) -> None:
    ledger = load_ledger(suite, "wheels")
    reports = [row for row in load(REPORTS, Reports).report if suite in row.suites()]
    entries = [row for row in ledger.expected if row.outcome in REPORTED]
    lacking = [entry for entry in entries if not any(upstream_reports.shows(entry, row) for row in reports)]
    assert lacking == [], "write a report of them: manifests/upstream/reports.toml"


def test_a_report_can_name_several_patterns_and_outcomes() -> None:
    report = UpstreamReport(
        suite="operators",
        test=("test_adaptive_maxpool3d.*_dtype[qnn-*", "test_maxpool3d.*_batch_sizes[qnn]"),
        outcome=("crash", "wrong"),
        title="",
        text="",
        command="",
    )
    assert upstream_reports.tests_of(report, load_ledger("operators", "wheels")) == [
        "test_adaptive_maxpool3d.test_adaptive_maxpool3d_dtype[qnn-float32]",
        "test_maxpool3d.test_maxpool3d_batch_sizes[qnn]",
    ]


@pytest.mark.parametrize(
    ("socs", "shown"), [(("SM8350",), True), (("SM8350", "SM8650"), False), ((), False), (("SM8650",), False)]
)
def test_a_report_of_a_chip_is_of_what_fails_there_alone(socs: tuple[str, ...], shown: bool) -> None:
    report = UpstreamReport(
        suite="rework-op", test="*[fp]", outcome="dies", socs=("SM8350",), title="", text="", command=""
    )
    entry = ExpectedTests(test="test_atan[fp]", outcome="dies", cause="no kernel", socs=socs)
    assert upstream_reports.shows(entry, report) is shown


def test_a_report_is_printed_with_its_tests_and_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    upstream_reports.print_reports("wheels", ["operators"])
    issues = capsys.readouterr().out.split("\n# ")
    (prelu,) = (issue for issue in issues if "prelu" in issue.splitlines()[0])
    assert "Tests: test_prelu.test_prelu_f32_per_channel_parameter[qnn]," in prelu
    assert prelu.splitlines()[-1].startswith("    nox -s test_upstream -- operators -k ")


def test_suites_without_a_report_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    upstream_reports.print_reports("wheels", ["genai", "imports"])
    printed = capsys.readouterr()
    assert (printed.out, printed.err.partition(":")[0]) == ("", "genai, imports")
