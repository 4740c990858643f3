"""Write the files that GitHub Actions reads after a step: its outputs, variables for the next steps, and the
job's summary. Outside GitHub they are not written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from ci.report.page import markdown
from ci.report.summary import github_annotations
from provisioning.base.files import write_named
from provisioning.base.findings import Report
from provisioning.verbs.env import github


def set_outputs(outputs: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Print the step's outputs; on GitHub, set them."""
    for name, value in outputs.items():
        sys.stdout.write(f"{name}={value}\n")
    append("GITHUB_OUTPUT", github(outputs), environ)


def export(variables: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Set environment variables for the steps that follow."""
    append("GITHUB_ENV", github(variables), environ)


def summarise(markdown: str, environ: Mapping[str, str]) -> None:
    append("GITHUB_STEP_SUMMARY", markdown, environ)


def annotate(report: Report, environ: Mapping[str, str]) -> None:
    """Show a stage's findings beside the change, and in the job's summary."""
    sys.stdout.write(github_annotations([report]))
    summarise(markdown([report]), environ)


def append(variable: str, text: str, environ: Mapping[str, str]) -> None:
    """Append to the file that the variable names; outside GitHub, do nothing."""
    if name := environ.get(variable):
        write_named(Path(name), text, append=True, fix=f"unset {variable} to run outside GitHub")
