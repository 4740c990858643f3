"""`github`: the logic of the workflows and actions under .github/, which contain none themselves.

Inputs arrive in the environment, where no shell reads them. Outputs go to the files that GITHUB_OUTPUT,
GITHUB_ENV and GITHUB_STEP_SUMMARY name."""

from __future__ import annotations

import argparse

EXAMPLES = """\
  python -m ci github plan
  QNN_CI_TARGETS=x86_64-linux python -m ci github setup
  QNN_CI_STAGE=validate python -m ci github stage
"""

PARTS = {
    "plan": ("plan", "choose the rows of manifests/gate.toml for a change, as the matrix of gate.yml"),
    "setup": ("setup", "provision the selection, and export its environment to later steps"),
    "stage": ("run_stage", "run a session, then annotate the change and summarise the job from its report"),
    "verdict": ("verdict", "say whether each planned job and program has passed in a report of this run"),
    "find_results": ("results", "name the cached results that the default branch saved last"),
    "take_results": ("results", "put the default branch's results, if restored, into the store"),
    "give_results": ("results", "write the results that this job used, for the job that saves"),
    "collect_results": ("results", "check what all jobs used, and write it for GitHub's cache"),
    "changes": (
        "comment",
        "write what became worse in a pull request, from the jobs' reports, for `comment`",
    ),
    "comment": (
        "comment",
        "write it into the one comment of the pull request, after the run that uploaded it",
    ),
}
"""Maps each part, which is a function of this name, to its module and its summary."""


def configure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, (_, summary) in PARTS.items():
        parts.add_parser(name, help=summary, description=summary)


def run(args: argparse.Namespace) -> int:
    import importlib
    import os
    import sys
    from dataclasses import replace
    from pathlib import Path

    from ci.report.collect import clean_report
    from ci.report.summary import github_annotations
    from provisioning.base.errors import ToolkitError
    from provisioning.base.findings import Finding, Severity
    from provisioning.base.places import Places
    from provisioning.base.stage_run import StageRun

    module = importlib.import_module(f"ci.github.{PARTS[args.part][0]}")
    try:
        code: int = getattr(module, args.part)(os.environ)
    except ToolkitError as error:
        if os.environ.get("GITHUB_ACTIONS") == "true":
            top = Path(os.environ.get("GITHUB_WORKSPACE", ""), os.environ.get("QNN_CI_SOURCE", "")).absolute()
            finding = Finding(error.rule, Severity.ERROR, "", error.message, error.fix)
            report = StageRun(args.part, "", "", "").finish()
            # Paths of the checkout, so that GitHub shows the finding at its file.
            located = replace(report, findings=(Places([top], [top], []).located(finding),))
            sys.stdout.write(github_annotations([clean_report(located, top)]))
        raise
    return code
