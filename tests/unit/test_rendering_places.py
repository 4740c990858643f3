"""A finding about a line of a file is shown on that line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.rendering.code_scanning import code_quality, sarif
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


def test_code_quality_has_a_relative_path_a_line_and_a_fingerprint_of_its_own_each() -> None:
    ran = replace(_report("net/8a8w/SM8650"), command="nox -s test_lowering -- --suite ci/models.toml")
    reports = [_report("ci/BUCK:3"), _report("ci/BUCK:3"), ran, _report("/etc/passwd.txt:3"), _report("")]
    found = json.loads(code_quality(reports))
    assert len({one["fingerprint"] for one in found}) == len(found) == 5
    places = [(one["location"]["path"], one["location"]["lines"]["begin"]) for one in found]
    profile = ("manifests/profiles/wheels.toml", 1)
    assert places == [("ci/BUCK", 3), ("ci/BUCK", 3), ("ci/models.toml", 1), profile, profile]
    assert {one["severity"] for one in found} == {"major"}


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
