"""Every test that upstream should hear of has its report."""

from __future__ import annotations

import pytest

from ci.lanes.upstream.accepted import accepted_file
from lab.upstream_reports import reports as upstream_reports
from lab.upstream_reports.reports import REPORTS, Reports, failures_in
from provisioning.accepted_file import load_accepted
from provisioning.base.documents import load

REPORTED = ("failed", "dies", "wrong", "crash", "memory", "bad_test")


@pytest.mark.parametrize(
    "suite",
    [
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
def test_each_accepted_failure_that_is_no_choice_of_upstream_has_a_report(suite: str) -> None:
    reports = [row for row in load(REPORTS, Reports).report if suite in row.suites()]
    failures = failures_in(load_accepted(accepted_file(suite, "wheels")))
    lacking = [
        failure
        for failure in failures
        if failure.outcome in REPORTED and not any(upstream_reports.shows(failure, row) for row in reports)
    ]
    assert lacking == [], "write a report of them: lab/upstream_reports/reports.toml"


def test_a_report_is_printed_with_its_tests_and_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    upstream_reports.print_reports("wheels", ["operators"])
    issues = capsys.readouterr().out.split("\n# ")
    (prelu,) = (issue for issue in issues if "prelu" in issue.splitlines()[0])
    # The table of operators has no row for each test.
    assert "Tests:" not in prelu
    assert prelu.splitlines()[-1].startswith("    nox -s lab -- operator_tests operators -k ")
