"""A finding about a line of a file is shown on that line."""

from __future__ import annotations

import json

import pytest

from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.rendering import sarif
from provisioning.base.rendering.text import place_of


def _report(subject: str, message: str = "message") -> Report:
    finding = Finding("parity-missing-in-buck", Severity.ERROR, subject, message, "remedy")
    return Report(
        "buck_parity", "wheels", "", Outcome.FAIL, "2026-01-01T00:00:00+00:00", 0.1, (finding,), (), {}, "nox"
    )


def test_sarif_has_the_file_and_the_line() -> None:
    result = json.loads(sarif([_report("backends/qualcomm/runtime/targets.bzl:44")]))["runs"][0]["results"][0]
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "backends/qualcomm/runtime/targets.bzl"
    assert location["region"] == {"startLine": 44}


def test_sarif_tells_two_findings_of_one_line_apart_and_knows_one_that_moved() -> None:
    reports = [_report("ci/BUCK:3", "a.cpp"), _report("ci/BUCK:3", "b.cpp"), _report("ci/BUCK:9", "a.cpp")]
    one, other, moved = (
        result["partialFingerprints"] for result in json.loads(sarif(reports))["runs"][0]["results"]
    )
    assert one == moved != other


@pytest.mark.parametrize(
    "subject",
    [
        "/etc/passwd.txt:3",
        "../up.py:3",
        "libQnnHtp.so",
        "",
    ],
)
def test_no_place_is_read_out_of_other_subjects(subject: str) -> None:
    assert place_of(subject) is None
