"""`report`: show every stage's report together, for people and for machines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from ci.report.junit import junit
from ci.report.page import html, markdown
from ci.report.renderings import FIX, publish
from ci.report.sarif import sarif
from ci.report.summary import conclusion, stage_line, worst
from provisioning.base import answer
from provisioning.base.commands import Fix, leave_out
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError, exit_code_of
from provisioning.base.findings import Outcome, Report
from provisioning.base.flags import add_valued, switch
from provisioning.base.rendering import HARMLESS, console, render, verdict, wants_colour, write
from provisioning.base.settings import reports_path
from provisioning.base.units import terminal_width

EXAMPLES = """\
  nox -s report
  nox -s report -- --format html -o site/index.html
  nox -s report -- --against reports-of-another-profile
  python -m ci report --format markdown --check
"""


NO_REPORTS = Fix(
    "run the stages that write them: {}; or name their folder: {}", ("gate",), ("--reports", "FOLDER")
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=tuple(RENDERINGS),
        help="print only this one [the terminal's, with the page, JUnit and SARIF beside the reports]",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write [standard output]"
    )
    parser.add_argument("--reports", type=Path, help="where reports are [QNN_CI_REPORTS, reports/]")
    add_valued(
        parser,
        "--merge",
        "FOLDER",
        "first make --reports of the reports of several jobs, each in a folder below this one",
        type=Path,
    )
    add_valued(
        parser,
        "--against",
        "FOLDER",
        "say only what became worse since the reports in this folder; exit 1 if anything did",
        type=Path,
    )
    switch(parser, "--check", "exit 1 unless all stages passed")


def run(args: argparse.Namespace) -> int:
    from ci.report.collect import collect, merge
    from provisioning.base.files import write_named

    directory = reports_path(args.reports)
    if args.merge:
        if not args.merge.is_dir():
            raise UsageError(f"--merge {args.merge}: there is no such folder", fix=leave_out("--merge"))
        merge(args.merge, directory)
    if not directory.is_dir():
        raise EnvironmentLacking(f"there is no directory of reports at {directory}", fix=NO_REPORTS)
    if args.against:
        return worse_than(args.against, directory)
    reports = collect(directory)
    if not reports and args.format is None and not (args.merge or args.check):
        # Its page and JUnit would only litter a folder that is no folder of reports.
        raise EnvironmentLacking(f"{directory} has no report of a stage", fix=NO_REPORTS)
    answer.add(reports=[asdict(report) for report in reports])
    if args.format is None:
        text = full_text(reports, colour=wants_colour(sys.stdout), width=terminal_width())
    elif args.format == "html" and args.output:
        text = html(reports, args.output.parent)
    else:
        text = RENDERINGS[args.format](reports)
    if args.output:
        write_named(args.output, text, fix=FIX)
        sys.stdout.write(f"wrote {args.output}\n")
    else:
        write(text, sys.stdout)
    if args.format is None:
        sys.stdout.write("\n")
        for path in publish(reports, directory, os.environ):
            sys.stdout.write(f"wrote {path}\n")
    return exit_code_of(good=not args.check or worst(reports) is Outcome.PASS)


def worse_than(folder: Path, directory: Path) -> int:
    from ci.report.changes import WORSE, changes_of, reports_in
    from ci.report.collect import show_figure

    if not folder.is_dir():
        message = f"--against {folder}: there is no such folder"
        raise UsageError(message, fix="name the folder of the earlier reports")
    changes = changes_of(reports_in(directory, folder), reports_in(folder, directory))
    if not changes.compared:
        raise CheckFailed(
            f"no program is in both {directory} and {folder}",
            fix="run one suite for both, with --reports FOLDER",
        )
    for change in changes.changes:
        before, now = show_figure(change.what, change.before), show_figure(change.what, change.now)
        write(f"{change.program}: {WORSE[change.what]} {before} → {now}\n", sys.stdout)
    sys.stdout.write(
        f"{changes.worse} of {changes.compared} programs are worse than in {folder},"
        f" {changes.not_compared} are not in both\n"
    )
    answer.add(changes=changes.model_dump(by_alias=True))
    return exit_code_of(good=not changes.worse)


def full_text(reports: Sequence[Report], *, colour: bool, width: int) -> str:
    """Show each stage that did not pass in full, then one line for each stage."""
    bad = [r for r in reports if verdict(r) not in {"did not run", *HARMLESS}]
    parts = [console(report, colour=colour, width=width) for report in bad]
    names = max((len(report.stage) for report in reports), default=0)
    lines = [render(stage_line(report, names), colour=colour, width=width) for report in reports]
    return "\n".join([*parts, "".join(lines), conclusion(reports, colour=colour, width=width)])


RENDERINGS: dict[str, Callable[[Sequence[Report]], str]] = {
    "html": html,
    "junit": junit,
    "sarif": sarif,
    "markdown": markdown,
}
