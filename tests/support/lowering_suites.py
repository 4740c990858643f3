"""Suites in a folder of their own, and the stages run on them as a user would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.findings import Report
from provisioning.base.settings import ROOT
from tests.support.sdk import sdk_root
from tests.support.typed import typed

CASE = """
[case.{name}]
factory = "{factory}"
arguments = {{ {arguments} }}
{case}

[[case.{name}.run]]
lane = "executorch"
precision = "{scheme}"
socs = ["{soc}"]
tags = ["pr"]
calibration = 16
thresholds = {{ {thresholds} }}
{run}
"""

DEFAULTS = {
    "factory": "lowering_models:net",
    "arguments": "",
    "case": "",
    "scheme": "16a16w",
    "soc": "SM8650",
    "thresholds": "sqnr_db = 15",
    "run": "",
}


def suite(folder: Path, cases: Mapping[str, Mapping[str, str]], name: str = "suite.toml") -> Path:
    """A suite of these cases there, with the models of tests/support beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "lowering_models.py").exists():
        shutil.copyfile(ROOT / "tests/support/lowering_models.py", folder / "lowering_models.py")
        (folder / "scale.txt").write_text("1.0")
    parts = [CASE.format(name=case, **{**DEFAULTS, **changes}) for case, changes in cases.items()]
    (folder / name).write_text("schema = 2\n" + "".join(parts))
    return folder / name


@dataclass(frozen=True)
class Done:
    code: int
    report: Report
    out: str
    err: str

    def rules(self, subject: str) -> set[str]:
        """What was found wrong with a program; that it has no baseline is not."""
        rules = {
            finding.rule for finding in self.report.findings if finding.subject.startswith(f"{subject}/")
        }
        return rules - {"cost-no-baseline"}

    def cached(self) -> set[str]:
        programs = self.report.metrics["programs"]
        assert isinstance(programs, dict)
        return {
            name.partition("/")[0]
            for name, row in programs.items()
            if isinstance(row, dict) and row.get("cached")
        }


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "QNN_SDK_ROOT": str(sdk_root()), **more}


def run(
    stage: str,
    base: Path,
    *flags: str | Path,
    environ: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> Done:
    words = [str(flag) for flag in flags]
    if stage in ("test_lowering", "test_emulator") and "--jobs" not in words:
        # A worker needs ten seconds to start, and other tests run beside this one.
        words += ["--jobs", "1"]
    places = ("--store", base / "store", "--reports", base / "reports")
    done = typed(stage, *words, *places, env=dict(environ or environment()), timeout=timeout)
    assert "Traceback" not in done.stderr, done.stderr
    report = Report.read(base / "reports" / f"{stage}.json")
    return Done(done.returncode, report, done.stdout, done.stderr)
