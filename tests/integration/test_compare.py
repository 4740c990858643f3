"""The compare command on two real QNN builds, with programs that a later build makes worse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ci.report.html import html
from provisioning.base.findings import Report
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

SUITE = """\
schema = 2

[case.steady]
factory = "nets:steady"
[[case.steady.run]]
lane = "onnx"
precision = "8a8w"
socs = ["SM8650"]
thresholds = { sqnr_db = 1 }

[case.worse]
factory = "nets:worse"
[[case.worse.run]]
lane = "onnx"
precision = "8a8w"
socs = ["SM8650"]
thresholds = { sqnr_db = 1 }
"""

NETS = """\
from importlib.metadata import version

import torch

LATER = version("onnxruntime-qnn") == "2.7.0"


def net(channels=16, outlier=1.0):
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(8, channels, 3), torch.nn.Conv2d(channels, 8, 3)
    with torch.no_grad():
        first.weight[0] *= outlier
        second.weight[:, 0] /= outlier
    return torch.nn.Sequential(first, torch.nn.ReLU(), second), (torch.randn(1, 8, 16, 16),)


def steady():
    return net()


def worse():
    return net(channels=128, outlier=100.0) if LATER else net()
"""
"""Stands in for a compiler that became worse: with the later build, the same case is another network."""


@pytest.mark.whole
def test_what_a_later_build_makes_worse_is_found(tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "nets.py").write_text(NETS)
    builds = ("--qnn", "2.50.40", "--qnn", "2.51.0")
    flags = ("--suite", tmp_path / "suite.toml", "--reports", tmp_path / "reports")
    done = typed("compare", *flags, *builds, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    report = Report.read(tmp_path / "reports" / "compare.json")
    (finding,) = report.findings
    assert done.returncode == 1 and finding.subject == "worse/8a8w/SM8650 on QNN 2.51.0"
    assert "SQNR in dB" in finding.message and "context" in finding.message
    table = (tmp_path / "reports" / "compare" / "table.md").read_text()
    assert "| steady/8a8w/SM8650 |" in table and table.count("**worse**") == 1
    page = html([report])
    assert page.index("worse/8a8w/SM8650") < page.index("steady/8a8w/SM8650")


@pytest.mark.whole
def test_the_build_that_a_known_fault_ends_with_is_found_and_the_operator(tmp_path: Path) -> None:
    """llama-decode-u16u8: 2.49.40 and 2.50.40 have it, and 2.51.0 does not."""
    asked = ("--bisect", "--qnn", "2.49.40..2.51", "--case", "llama_decode", "--soc", "SM8650", "--where")
    done = typed("compare", *asked, "--reports", tmp_path / "reports")
    report = Report.read(tmp_path / "reports" / "compare.json")
    assert report.metrics["bisect"] == {
        "order": ["2.49.40", "2.50.40", "2.51.0"],
        "measured": ["2.49.40", "2.50.40", "2.51.0"],
        "first": "2.51.0",
    }
    where: Any = report.metrics["where"]
    assert where["2.50.40"]["first"] and done.returncode == 0, done.stdout
