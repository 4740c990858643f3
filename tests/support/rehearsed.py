"""Workflows rehearsed by the command line, as a user would, and the examples of our pages to rehearse."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.base.findings import Report
from provisioning.base.settings import ROOT

OF_THE_RUN = ("GITHUB_", "RUNNER_", "QNN_", "ANDROID_NDK", "HEXAGON_SDK", "EXECUTORCH_ROOT")


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal printed, reported and left."""

    code: int
    output: str
    report: Report
    logs: Path

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Those that ran, or were to."""
        jobs: Any = self.report.metrics["jobs"]
        return {job["name"]: job for job in jobs if job["result"] != "left out"}

    def results(self) -> dict[str, str]:
        return {name: job["result"] for name, job in self.jobs.items()}

    def log(self, job: str) -> str:
        slug = "".join(c if c.isalnum() or c in "-." else "_" for c in job)
        return (self.logs / f"{slug}.log").read_text(encoding="utf-8")


def rehearse(reports: Path, workflow: str, *flags: str, toolkit: Path = ROOT) -> Rehearsed:
    """`python -m ci rehearse`, in an environment where nothing of this run's own is set."""
    command = [sys.executable, "-m", "ci", "rehearse", workflow, "--reports", str(reports), *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_RUN)}
    done = subprocess.run(
        command,
        cwd=toolkit,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    file = reports / "rehearse.json"
    assert file.is_file(), done.stdout
    return Rehearsed(done.returncode, done.stdout, Report.read(file), reports / "rehearsal")


def example(page: Path, begins: str) -> str:
    """The YAML example of a page that begins so, as someone would fill it in."""
    text = page.read_text(encoding="utf-8")
    (found,) = [e for e in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if e.startswith(begins)]
    return filled(found)


def filled(text: str) -> str:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    values: Mapping[str, str] = {"OWNER/": "somebody/", "@COMMIT": f"@{head}", "# VERSION": "# v0.1.0"}
    return re.sub("|".join(values), lambda match: values[match[0]], text)
