"""`rehearse`: run a workflow of .github/workflows on this machine, as GitHub would."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import count, repeatable

EXAMPLES = """\
  nox -s rehearse -- pr
  nox -s rehearse -- pr --row validate --jobs 1
  nox -s rehearse -- pr --only plan
  nox -s rehearse -- nightly --event workflow_dispatch --list
  nox -s rehearse -- nightly --row locks
  nox -s rehearse -- update-pins
  nox -s rehearse -- release --ref refs/tags/v0.1.0
  nox -s rehearse -- pr --row validate --env QNN_SDK_ROOT=/nowhere
  nox -s rehearse -- qnn --root ../my-models
  nox -s rehearse -- qnn --root ../my-models --times ci/net.py
"""

EVENTS = ("pull_request", "push", "merge_group", "schedule", "workflow_dispatch")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workflow", metavar="WORKFLOW", help="a file of .github/workflows, without .yml")
    parser.add_argument("--event", choices=EVENTS, help="what happened [the first that the workflow is on]")
    choice = parser.add_argument_group("which jobs")
    repeatable(choice, "--only", "JOB", "this and what it needs")
    repeatable(choice, "--row", "NAME", "of jobs with a matrix, only these")
    choice.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--jobs", "-j", type=count, default=2, metavar="N", help="jobs side by side [%(default)s]"
    )
    repeatable(how, "--env", "NAME=VALUE", "set in every job")
    repeatable(how, "--var", "NAME=VALUE", "a variable of the repository (`vars`)")
    how.add_argument("--ref", metavar="REF", help="what was pushed [refs/heads/main, or refs/tags/v0.0.0]")
    how.add_argument(
        "--base",
        metavar="COMMIT",
        help="what the changes are compared with; none: everything changed [HEAD^]",
    )
    how.add_argument("--uncommitted", action="store_true", help="rehearse the working tree's changes as well")
    how.add_argument(
        "--times",
        metavar="FILE",
        help="rehearse a push with empty caches, a pull request that changes nothing, and one that changes"
        " FILE, a Python module of one model; show wall time and billed minutes of each",
    )
    how.add_argument("--keep", action="store_true", help="keep the jobs' workspaces")
    how.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="rehearse this repository's workflow instead; where it uses the toolkit, this checkout is used",
    )
    parser.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def run(args: argparse.Namespace) -> int:
    from ci.github.rehearse.verb import rehearse

    return rehearse(args)
