"""Every rule that a finding can have is explained by a table, and `diagnose RULE` prints it."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.builds.built_files import FIXES
from ci.diagnose.rules import OTHERS, TABLE, failure_rules, rule_named, rules
from ci.lanes.executorch import findings
from ci.lanes.onnx.worker import KINDS
from ci.lanes.registry import lanes_by_stage
from ci.suite.accepted import COSTS
from ci.suite.figures import cost_rule
from ci.work.child import UNFORESEEN
from provisioning.base import toml
from provisioning.base.command_line import main
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.known_faults import load_faults
from tests.support.rules import ANY, printed_rules

UNUSABLE = ("missing", "shape", "not-finite", "reference-not-finite", "run")
STAGES = [stage.removeprefix("test_") for stage in lanes_by_stage()]
AT_RUN_TIME = {
    *(f"build-{what}" for what in FIXES),
    *(f"emulator-{rule}" for rule in UNUSABLE),
    *(f"device-{rule}" for rule in (*UNUSABLE, "extra")),
    *(f"lowering-{kind}" for kind in (*findings.FIXES, "crash", "export", "quantize", "compile")),
    *(f"onnx-{kind}" for kind in (*KINDS.values(), "refused", UNFORESEEN)),
    *(f"{stage}-{kind}" for stage in STAGES for kind in ("crash", "timeout")),
    "emulator-metric",
    "onnx-metric",
    *(f"{suite}-{word}" for suite in ("delegate", "upstream") for word in ("failed", "passed", "gone")),
    *map(cost_rule, COSTS),
}
"""Rules of which the code alone has no whole name."""


def diagnose(*argv: str) -> int:
    return main("python -m ci", "", {"diagnose": VERBS["diagnose"]}, ["diagnose", *argv])


def test_every_rule_of_the_code_has_a_row() -> None:
    printed = printed_rules()
    assert len(printed) > 100 and {"emulator-accuracy", "bundle-needed", "*-gone"} <= set(printed)
    without = {
        rule: place
        for rule, place in printed.items()
        if not rule_named(rule) and not (ANY in rule and any(fnmatchcase(row, rule) for row in rules()))
    }
    assert not without, f"give them a row in {TABLE.name}: {without}"
    assert not {rule for rule in AT_RUN_TIME if not rule_named(rule)}


def test_rules_have_dashes_only() -> None:
    assert len(rules()) > 100
    assert not [rule for rule in (*rules(), *printed_rules()) if not re.fullmatch(r"[a-z0-9*-]+", rule)]


def test_every_row_is_of_a_rule_that_the_code_has() -> None:
    names = {*printed_rules(), *AT_RUN_TIME}
    rows = toml.loads(TABLE.read_text(encoding="utf-8"))["rule"]
    unused = {
        row for row in rows if not any(fnmatchcase(name, row) or fnmatchcase(row, name) for name in names)
    }
    assert rows and not unused


def test_no_rule_is_in_two_tables_and_each_page_is_there() -> None:
    tables = [toml.loads(path.read_text(encoding="utf-8"))["rule"] for path in _tables()]
    assert sum(map(len, tables)) == len(rules())
    assert all((ROOT / rule.page).is_file() for rule in rules().values())


def _tables() -> list[Path]:
    return [TABLE, *(MANIFESTS / file for file in OTHERS)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("emulator-accuracy", "divergence"),
        ("onnx-timeout", "--timeout"),
        ("lowering-timeout", "--timeout"),
        ("qnn-version", "--profile"),
        ("parity-missing-in-buck", "add it to FILE"),
        ("stub-mismatch", failure_rules()["stub-mismatch"].fix),
    ],
)
def test_diagnose_says_what_to_do_about_a_rule(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose(name) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(name) and words in shown


def test_each_known_fault_is_explained_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    for fault in load_faults():
        assert diagnose(fault.id) == 0 and capsys.readouterr().out.startswith(fault.id)


def test_a_rule_that_is_none_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose("emulator-acuracy") == 2
    assert "did you mean emulator-accuracy?" in capsys.readouterr().err
