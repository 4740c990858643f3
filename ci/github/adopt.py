"""`adopt`: write the files that gate a repository's models on GitHub: the gate's workflow, the one that
comments, and Dependabot's entry, which keeps both current."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.work import Job
from provisioning.base import answer
from provisioning.base.commands import Fix, capture
from provisioning.base.errors import CheckFailed, UsageError, exit_code_of
from provisioning.base.files import replace_text, repository_of
from provisioning.base.flags import repeatable
from provisioning.base.origin import this_copy
from provisioning.base.parser import Parser
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import MANIFESTS, PLACEHOLDER, Selection

EXAMPLES = """\
  qnn-ci adopt
  qnn-ci adopt --suite ci/models.toml --soc SM8650 --soc SM8750
"""

GATE, COMMENT, DEPENDABOT = (
    ".github/workflows/qnn.yml",
    ".github/workflows/qnn-comment.yml",
    ".github/dependabot.yml",
)
FILES = MANIFESTS / "adopt"
USUAL = ("models.toml", "ci/models.toml", "tests/models.toml")
"""The suites to look for if the user names none."""

JOBS = 4
"""At most this many jobs compile, as manifests/gate.toml says."""
CORES = 2
SETUP_SECONDS = 150.0
"""A new runner with two cores needs this long before it compiles its first model: tools, packages of 1.8 GB,
QNN, the runner."""
UNCHANGED = 0.35
"""The share of the work that is done even if nothing changed: models are exported, and their outputs
judged."""
OTHER_JOBS = 3
"""The jobs plan, report and verdict, each of which takes less than a minute."""
USD_PER_MINUTE = 0.006
"""GitHub's price for a private repository's Linux runner with two cores, since January 2026."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(
        parser, "--suite", "FILE", f"a suite of this repository [the first of {', '.join(USUAL)}]", type=Path
    )


def run(args: argparse.Namespace) -> int:
    folder = Parser.user_folder().absolute()
    top = repository_of(folder / "file")
    suites = [folder / suite for suite in args.suite] or [*_suites_below(top)]
    for suite in suites:
        if not suite.is_file() or not suite.resolve().is_relative_to(top.resolve()):
            raise UsageError(
                f"{suite}: there is no such file in the repository {top}",
                fix=Fix("name a suite of it, or make one: {}", ("example",)),
            )
    selection = selection_of(args)
    names = [suite.resolve().relative_to(top.resolve()).as_posix() for suite in suites]
    adoption = Adoption(names, selection.named_socs, branch_of(top))
    edited = [name for name, text in adoption.texts().items() if not _write(top / name, name, text)]
    jobs = list(_jobs(suites, selection))
    sys.stdout.write(costs_of(jobs))
    sys.stdout.write("next: commit them, and require the check `qnn / verdict` in the branch protection\n")
    if adoption.is_open:
        sys.stdout.write(
            f"replace {PLACEHOLDER}@COMMIT by where your copy of qnn-ci is: this one does not know\n"
        )
    answer.add(files=[*adoption.texts()], edited=edited)
    if edited:
        raise CheckFailed(
            f"{', '.join(edited)}: somebody has written another text, which stays: see the difference above",
            fix="take over what you want of it, or remove the file and type the command again",
        )
    return exit_code_of(good=True)


def _suites_below(top: Path) -> Iterator[Path]:
    suite = next((top / name for name in USUAL if (top / name).is_file()), None)
    if suite is None:
        raise UsageError(
            f"{top} has none of {', '.join(USUAL)}",
            fix=Fix("name your suite with --suite, or make one: {}", ("example",)),
        )
    yield suite


@dataclass(frozen=True, slots=True)
class Adoption:
    suites: Sequence[str]
    """The paths of the suites in the repository."""
    socs: Sequence[str]
    branch: str

    @property
    def is_open(self) -> bool:
        """Whether the origin of this copy of the toolkit is unknown."""
        return PLACEHOLDER in self.texts()[GATE] or "@COMMIT" in self.texts()[GATE]

    def texts(self) -> dict[str, str]:
        copy = this_copy()
        pin = f"@{copy.commit} # v{copy.version}" if copy.commit else "@COMMIT # VERSION"
        gate = (MANIFESTS / "workflow.yml").read_text(encoding="utf-8")
        gate = gate.replace("[main]", f"[{self.branch}]").replace("ci/models.toml", ",".join(self.suites))
        gate += f"      socs: {','.join(self.socs)}\n" if self.socs else ""
        texts = {GATE: f"{gate}      comment: true\n"}
        for name in (COMMENT, DEPENDABOT):
            texts[name] = (FILES / Path(name).name).read_text(encoding="utf-8")
        return {
            name: text.replace(PLACEHOLDER, copy.name).replace("@COMMIT # VERSION", pin)
            for name, text in texts.items()
        }


def branch_of(top: Path) -> str:
    """The default branch, as the clone knows it; else the one that is checked out."""
    for command in (["symbolic-ref", "refs/remotes/origin/HEAD"], ["symbolic-ref", "HEAD"]):
        done = capture(["git", *command], cwd=top)
        if done.returncode == 0:
            return (
                done.stdout.strip().removeprefix("refs/").split("/", 2 if "origin" in done.stdout else 1)[-1]
            )
    return "main"


RENEWS_ACTIONS = re.compile(r"""package-ecosystem:\s*["']?github-actions""")


def _write(path: Path, name: str, text: str) -> bool:
    """Write a file that does not exist, and say so; show how an existing one differs. Returns whether the
    repository now has what it needs."""
    try:
        before = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
        sys.stdout.write(f"wrote {name}\n")
        return True
    if before == text or (name == DEPENDABOT and RENEWS_ACTIONS.search(before)):
        sys.stdout.write(f"{name} is as it should be\n")
        return True
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), text.splitlines(keepends=True), name, f"{name} of qnn-ci"
    )
    sys.stdout.writelines(lines)
    return False


def _jobs(suites: Sequence[Path], selection: Selection) -> Iterator[Job]:
    """The work on each program of the suites, with the time that it takes on one core."""
    from ci.lanes.registry import lane_named
    from ci.suite.options import Choice
    from ci.suite.suite_file import lanes_of

    for lane in dict.fromkeys(lane for suite in suites for lane in lanes_of(suite)):
        own = tuple(suite.absolute() for suite in suites if lane in lanes_of(suite))
        yield from lane_named(lane).lane.chosen_jobs(Choice(suites=own), selection)


def costs_of(jobs: Sequence[Job]) -> str:
    """Estimate the minutes and the money of a pull request from the work of its jobs."""
    cold, warm = billed_minutes(jobs, 1.0), billed_minutes(jobs, UNCHANGED)
    prices = [f"{minutes * USD_PER_MINUTE:.2f}" for minutes in (cold, warm)]
    return (
        f"{len(jobs)} programs or models: about {cold} minutes are billed if all are compiled,"
        f" and {warm} if nothing changed\n"
        f"(in a private repository {' and '.join(prices)} USD; GitHub takes nothing for a public one)\n"
    )


def billed_minutes(jobs: Sequence[Job], share: float) -> int:
    """The minutes that GitHub bills for this share of the work: each job is billed by whole minutes."""
    from ci.github.matrix import matrix_of

    compiling = len(matrix_of(jobs, JOBS, ())["include"])
    seconds = share * sum(job.seconds for job in jobs) / CORES / max(1, compiling)
    return OTHER_JOBS + compiling * math.ceil((SETUP_SECONDS + seconds) / 60)
