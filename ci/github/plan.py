"""Choose the jobs of GitHub Actions for a change: rows of manifests/gate.toml, by the changed files, split
into shards.

The first job of a workflow calls `plan`. It reads who calls the gate and what changed, chooses rows
(`choose`), leaves out those whose work another row does (`merge`), and prints a matrix with one entry for
each job."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.gate import GATE_TABLE
from ci.gate.table import CiJob, GateTable, gate_table, matches
from ci.github.run_stage import REPORTED_BY_VERB, variables_of
from ci.github.step_files import set_outputs, summarise
from ci.github.verdict import Planned, PlannedJob
from ci.lanes.registry import lane_named, lanes_by_stage
from ci.report.page import cell, code
from ci.suite.options import GATE, Choice
from ci.suite.suite_file import lanes_of
from ci.work import Job
from provisioning.base.commands import capture, repeat_flag
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Metric
from provisioning.base.foreign import escape_line
from provisioning.base.selection import chip_named
from provisioning.base.settings import (
    DEFAULT_PROFILE,
    DEFAULT_SOC,
    DEFAULT_TARGET,
    ROOT,
    Selection,
    reports_path,
    store_path,
)
from provisioning.base.stage_run import RUN

OCCASIONS = ("gate", "nightly")
EXECUTORCH = "executorch"
"""Pull requests run this lane of our shipped suite."""

WORTH_A_JOB = 1200
"""Less than this many seconds of one core's work are not worth one more runner of two cores, which takes
minutes to be ready and is billed for them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The repository that calls the gate, and the settings that it passes to the jobs."""

    profile: str
    executorch: bool = False
    """Whether the repository is a checkout of ExecuTorch."""
    is_self: bool = True
    """Whether the repository is this one."""
    suites: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Maps a lane to the caller's suites that have programs of it, as paths from the repository's root."""
    source: Path = ROOT
    """The folder where the repository is checked out."""
    tags: tuple[str, ...] = ()
    socs: str = ""
    shards: int = 0
    """The most jobs for a stage of its suite, in place of the table's number."""
    minutes: int = 0
    """The minutes after which a job of its suite ends, in place of the table's number."""
    work: tuple[str, ...] = ()
    """The flags for work on the programs of its suite."""
    call: str = ""
    """The name of this call of the gate; another call in the same workflow has another name."""

    def lanes_of(self, row: CiJob) -> Sequence[str]:
        """The lanes whose programs a job of this row runs, from the caller's suites or from our shipped
        one."""
        if row.stage == GATE:
            return [*(self.suites or (EXECUTORCH,))] if row.suite else []
        head = lanes_by_stage().get(row.stage)
        has_suite = head is not None and (head.name in self.suites or (row.suite and not self.suites))
        return [head.name] if head and has_suite else []

    def suites_of(self, row: CiJob) -> list[str]:
        """The caller's suites that the row runs; empty if it runs one of ours."""
        return list(dict.fromkeys(file for lane in self.lanes_of(row) for file in self.suites.get(lane, ())))

    def missing_input(self, row: CiJob) -> str:
        """The input that the row needs and this repository does not give; empty if none is missing."""
        if row.executorch and not self.executorch:
            return "the input executorch"
        if row.profiles and self.profile not in row.profiles:
            return f"the profile {' or '.join(row.profiles)}"
        return ""

    def has(self, row: CiJob) -> bool:
        """Whether the row applies to this repository. A repository other than ours has the rows of its suites
        and of its tree."""
        if self.is_self:
            return True
        if row.executorch:
            return self.executorch
        return not row.own and bool(self.suites or not row.suite)


INPUTS = (
    *("OCCASION", "STAGES", "PROFILE", "SOC", "SUITE", "TAGS"),
    *("GATE_REQUIREMENTS", "EXECUTORCH", "RUNS_ON", "PREPARE", "VARIABLES", "JOBS", "TIMEOUT"),
    "UNRELATED",
)
"""The inputs of gate.yml that describe the work of a call. They are variables named QNN_CI_…"""

LEAST_MINUTES = 10
"""A job needs at least this many minutes: a new runner takes up to five before its first model is
compiled."""
MOST_MINUTES = 6 * 60
"""GitHub ends a job of its own runners after this many minutes."""
MOST_SECONDS = MOST_MINUTES * 60

NO_RUNNER = re.compile(r"(?:windows|macos)(?:\W.*)?|(?:.*\W)?(?:arm64|arm|aarch64)", re.IGNORECASE)
"""Matches the label of a runner whose system or processor QNN's compiler does not support."""

MOST_LISTED = 100
"""At most this many unrelated files are listed."""
READABLE = 60
"""The readable part of a call's name has at most this many characters."""

Lengths = Callable[[str, Sequence[Path], Sequence[str], Caller], Sequence[Job]]
"""Returns the expected work of a lane on the programs of these suites with these tags."""


def lengths_of(lane: str, suites: Sequence[Path], tags: Sequence[str], caller: Caller) -> list[Job]:
    socs = tuple(chip_named(soc) for soc in caller.socs.split(",") if soc)
    selection = Selection(
        profile=caller.profile,
        target=DEFAULT_TARGET,
        soc=(*socs, DEFAULT_SOC)[0],
        store=store_path(),
        reports=reports_path(),
        named_socs=socs,
    )
    return lane_named(lane).lane.chosen_jobs(Choice(suites=tuple(suites), tags=tuple(tags)), selection)


def plan(environ: Mapping[str, str], lengths: Lengths = lengths_of) -> int:
    """Plan the jobs. Read QNN_CI_OCCASION, QNN_CI_BASE (a commit; empty: run everything), QNN_CI_UNRELATED,
    QNN_CI_STAGES, and what `caller_of` reads."""
    table = gate_table()
    occasion = environ.get("QNN_CI_OCCASION") or "gate"
    if occasion not in OCCASIONS:
        raise UsageError(f"QNN_CI_OCCASION={occasion}: expected one of {', '.join(OCCASIONS)}")
    base = environ.get("QNN_CI_BASE", "")
    if unrelated := unrelated_changes(environ, occasion, base):
        return plan_nothing(unrelated, environ)
    is_self = environ.get("QNN_CI_OWN", "true") == "true"
    changes = changed_files(base) if is_self and occasion != "nightly" else None
    stages = environ.get("QNN_CI_STAGES", "")
    rows = named_only(table.row, stages)
    caller = caller_of(environ)
    variables_of(environ.get("QNN_CI_VARIABLES", ""))
    refuse_runners(environ.get("QNN_CI_RUNS_ON", ""))
    choice, reasons = choose(table, rows, occasion, changes, caller, explicit=bool(stages.strip()))
    if not stages.strip():
        merge(choice, reasons)
    jobs = [job for name, row in choice.items() for job in jobs_of(name, row, caller, occasion, lengths)]
    for name, why in reasons.items():
        sys.stdout.write(f"{name:<14} {escape_line(why)}\n")
    begin = artifact_name("reports", caller.call)
    sys.stdout.write(f"artifacts begin with {begin}: a second call with equal inputs cannot upload its own\n")
    if not jobs:
        raise UsageError(
            "no job is left to run",
            fix=f"name stages that {GATE_TABLE.relative_to(ROOT)} has, or a suite: gate.yml's inputs",
        )
    lines = ["### The plan", "", "| job | why |", "| --- | --- |"]
    lines += [f"| {cell(name)} | {cell(why)} |" for name, why in reasons.items()]
    summarise("\n".join([*lines, "", ""]), environ)
    planned = Planned(
        environ.get(RUN, ""),
        {str(job["name"]): PlannedJob(str(job["artifact"]), report_of(job)) for job in jobs},
        programs_of(choice.values(), occasion, caller),
    )
    set_outputs({"jobs": json.dumps(jobs), "artifacts": begin, "planned": planned.packed()}, environ)
    return 0


def unrelated_changes(environ: Mapping[str, str], occasion: str, base: str) -> list[str]:
    """The changed files of the calling repository if QNN_CI_UNRELATED matches all of them; else none."""
    patterns = _several(environ, "QNN_CI_UNRELATED")
    # A push compares with the push before it, which may have been red.
    if not patterns or occasion == "nightly" or environ.get("GITHUB_EVENT_NAME") == "push":
        return []
    files = changed_files(base, source_of(environ)) or []
    return files if all(matches(file, patterns) for file in files) else []


def plan_nothing(unrelated: Sequence[str], environ: Mapping[str, str]) -> int:
    lines = [
        "### Not run: only unrelated paths",
        "",
        *(f"- {code(file)}" for file in unrelated[:MOST_LISTED]),
    ]
    summarise("\n".join([*lines, "", ""]), environ)
    sys.stdout.writelines(f"unrelated: {escape_line(file)}\n" for file in unrelated)
    planned = Planned(environ.get(RUN, ""), {}, {}, tuple(unrelated[:MOST_LISTED]))
    begin = artifact_name("reports", call_name(environ))
    set_outputs({"jobs": "[]", "artifacts": begin, "planned": planned.packed()}, environ)
    return 0


def report_of(job: Mapping[str, object]) -> str:
    """The stage whose report says how a job of the matrix ended."""
    stage, arguments = str(job["stage"]), str(job["arguments"])
    return arguments.partition(" ")[0] if stage in REPORTED_BY_VERB else stage


def programs_of(rows: Iterable[CiJob], occasion: str, caller: Caller) -> dict[str, list[str]]:
    """Maps a stage to the programs for which the rows' jobs must reach a verdict."""
    programs: dict[str, list[str]] = {}
    for row in rows:
        for lane in caller.lanes_of(row):
            tags = tags_of(row, occasion, caller)
            names = names_of(lane, caller.suites.get(lane, ()), tags, caller)
            stages = lane_named(lane).head.gate_stages if row.stage == GATE else (row.stage,)
            programs |= dict.fromkeys(stages, names)
    return programs


def names_of(lane: str, suites: Sequence[str], tags: Sequence[str], caller: Caller) -> list[str]:
    """The names of the programs that a stage of this lane chooses."""
    socs = [chip_named(soc) for soc in caller.socs.split(",") if soc]
    files = [caller.source / suite for suite in suites]
    return lane_named(lane).suites.program_names(files, socs, caller.profile, tags)


def caller_of(environ: Mapping[str, str]) -> Caller:
    """Describe the caller by QNN_CI_PROFILE, QNN_CI_SOC, QNN_CI_TAGS, QNN_CI_SUITE (paths in the calling
    repository, which is the workspace's folder QNN_CI_SOURCE), and the flags QNN_CI_OWN (`true`: the calling
    repository is this one) and QNN_CI_EXECUTORCH (`true`: it is a checkout of ExecuTorch)."""
    source = source_of(environ)
    suites: dict[str, list[str]] = {}
    for name in _several(environ, "QNN_CI_SUITE"):
        file = source / name
        if not file.is_file() and (submodule := submodule_of(name, source)):
            raise UsageError(
                f"the suite {name}: it is in the submodule {submodule}, which is not checked out",
                fix="give gate.yml `submodules: true`; for one that needs a token use the action of"
                " docs/github.md in a job of your own, which checks it out",
            )
        if not file.is_file() or not file.resolve().is_relative_to(source.resolve()):
            raise UsageError(
                f"the suite {name}: there is no such file in the calling repository",
                fix="give gate.yml's input suite a path that begins at the repository's root",
            )
        for lane in lanes_of(file):
            suites.setdefault(lane, []).append(name)
    return Caller(
        profile=environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE,
        executorch=environ.get("QNN_CI_EXECUTORCH") == "true",
        is_self=environ.get("QNN_CI_OWN", "true") == "true",
        suites=suites,
        source=source,
        tags=_several(environ, "QNN_CI_TAGS"),
        socs=",".join(_several(environ, "QNN_CI_SOC")),
        shards=_number(environ, "QNN_CI_SHARDS", "shards", 1, 100),
        minutes=_number(environ, "QNN_CI_MINUTES", "minutes", LEAST_MINUTES, MOST_MINUTES),
        work=work_flags(environ),
        call=call_name(environ),
    )


def source_of(environ: Mapping[str, str]) -> Path:
    """Where the calling repository is checked out."""
    return Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_SOURCE", "")).absolute()


def work_flags(environ: Mapping[str, str]) -> tuple[str, ...]:
    jobs = _number(environ, "QNN_CI_JOBS", "jobs", 1, 1000)
    timeout = _number(environ, "QNN_CI_TIMEOUT", "timeout", 1, MOST_SECONDS)
    return (*repeat_flag("--jobs", [jobs or None]), *repeat_flag("--timeout", [timeout or None]))


def _number(environ: Mapping[str, str], variable: str, name: str, least: int, most: int) -> int:
    """0 if the caller gives none."""
    text = environ.get(variable, "")
    if text and not (text.isdecimal() and least <= int(text) <= most):
        raise UsageError(
            f"gate.yml's input {name}: {escape_line(text)}",
            fix=f"give it a number from {least} to {most}, or leave it out",
        )
    return int(text or 0)


def submodule_of(name: str, source: Path) -> str:
    """The submodule of the repository that has a file of this name; empty if none does."""
    try:
        text = (source / ".gitmodules").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    folders = re.findall(r"^\s*path\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return next((escape_line(folder) for folder in folders if name.startswith(f"{folder}/")), "")


def refuse_runners(text: str) -> None:
    try:
        labels = json.loads(text or "[]")
    except ValueError:
        labels = [text]
    for label in [labels] if isinstance(labels, str) else labels:
        if NO_RUNNER.fullmatch(str(label)):
            raise UsageError(
                f"gate.yml's input runs-on: {escape_line(str(label))}:"
                " QNN's compiler runs on x86-64 Linux alone",
                fix="give it a label of such runners, as ubuntu-24.04, or leave it out",
            )


def call_name(environ: Mapping[str, str]) -> str:
    """A name that begins with readable words and ends with a digest of all inputs in which two calls of the
    gate can differ."""
    values = [_several(environ, f"QNN_CI_{name}") for name in INPUTS]
    digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]
    suites = [Path(suite).stem for suite in _several(environ, "QNN_CI_SUITE")]
    readable = artifact_name(environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE, *suites)
    return f"{readable[:READABLE].rstrip('-')}-{digest}"


def _several(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in re.split(r"[,\n]", environ.get(name, "")) if part.strip())


def named_only(rows: Mapping[str, CiJob], stages: str) -> dict[str, CiJob]:
    """The rows that an adopting repository names, by row or stage; all rows if it names none."""
    names = set(stages.replace(",", " ").split())
    jobs = {*rows, *(row.stage for row in rows.values())}
    for name in names - jobs:
        raise UsageError(f"there is no job {name!r}", fix=f"use some of: {', '.join(sorted(jobs))}")
    return {name: row for name, row in rows.items() if not names or {name, row.stage} & names}


def choose(
    table: GateTable,
    rows: Mapping[str, CiJob],
    occasion: str,
    changes: Sequence[str] | None,
    caller: Caller,
    *,
    explicit: bool = False,
) -> tuple[dict[str, CiJob], dict[str, str]]:
    """Return the rows to run, and for every row about this repository the reason why it runs or not.

    `changes` is None if it is not known. A row that the caller names runs on any occasion and in any
    repository; if it cannot, that is an error."""
    choice: dict[str, CiJob] = {}
    reasons: dict[str, str] = {}
    for name, row in rows.items():
        if not explicit and not caller.has(row):
            continue
        need = caller.missing_input(row)
        if explicit and need:
            raise UsageError(
                f"the job {name} was named, and needs {need}",
                fix="give gate.yml that input, or leave the job out of stages",
            )
        sooner = next((file for file in changes or () if matches(file, row.sooner)), "")
        waits = row.when == "nightly" and occasion != "nightly" and not explicit
        if waits and not sooner and not (row.sooner and changes is None):
            reasons[name] = "left out: runs nightly"
            continue
        if need:
            reasons[name] = f"left out: needs {need}"
            continue
        ignored = table.ignored_by(row)
        cause = next((file for file in changes or () if not matches(file, ignored)), "")
        if waits:
            reasons[name] = f"runs: {sooner} changed" if sooner else "runs: which files changed is not known"
        elif not ignored:
            reasons[name] = "always runs"
        elif changes is None:
            reasons[name] = "runs: which files changed is not known"
        elif cause:
            reasons[name] = f"runs: {cause} changed"
        else:
            reasons[name] = "left out: only files that it ignores changed"
            continue
        choice[name] = row
    return choice, reasons


def merge(choice: dict[str, CiJob], reasons: dict[str, str]) -> None:
    """Leave out rows whose work another chosen row does, so that a single job sets up a runner for it."""
    for name, row in list(choice.items()):
        for loser in row.replaces:
            if choice.pop(loser, None):
                reasons[loser] = f"left out: the job {name} does it"


def jobs_of(
    name: str, row: CiJob, caller: Caller, occasion: str, lengths: Lengths
) -> Iterator[dict[str, Metric]]:
    """Yield the entries of gate.yml's matrix for this row: one job, or one for each shard."""
    lanes, suites, tags = caller.lanes_of(row), caller.suites_of(row), tags_of(row, occasion, caller)
    if lanes:
        # The gate's `provision` would take the components of all targets, and only one lane needs the runner.
        of_gate = ["--target", row.targets] if row.stage == GATE else []
        skips = ["--skip", "build_runner"] if row.stage == GATE and EXECUTORCH not in lanes else []
        own = [*repeat_flag("--suite", suites), *repeat_flag("--tag", tags), *caller.work]
        shards = shards_of(lanes, caller.shards or row.suite or row.shards, caller, tags, lengths)
        parts = _split_into_shards(shlex.join([*of_gate, *own, *skips]), shards)
    else:
        parts = _split_into_shards(row.arguments, row.shards)
    for shard, arguments in parts:
        yield {
            "name": f"{name}{shard}",
            "artifact": artifact_name("reports", caller.call, name, shard.replace("/", " of ")),
            "stage": row.stage,
            "arguments": arguments.strip(),
            "minutes": (caller.minutes if suites else 0) or row.minutes,
            "provision": row.provision,
            "targets": row.targets,
            "theirs": bool(suites),
            "runner": row.runner,
            "submodules": "recursive" if row.submodules else "false",
            "packages": " ".join(row.packages),
            "variables": shlex.join(f"{name}={value}" for name, value in row.variables.items()),
            "root": row.root,
            "remembers": row.remembers,
        }


def shards_of(lanes: Sequence[str], most: int, caller: Caller, tags: Sequence[str], lengths: Lengths) -> int:
    """The number of jobs that the work is worth, but no more than a lane has programs for, so that no job is
    empty."""
    jobs = []
    for lane in lanes:
        suites = [caller.source / suite for suite in caller.suites.get(lane, ())]
        jobs.append(lengths(lane, suites, tags, caller))
    worth = math.ceil(sum(job.seconds for row in jobs for job in row) / WORTH_A_JOB)
    return max(1, min(most, worth, max(map(len, jobs))))


def _split_into_shards(arguments: str, shards: int) -> list[tuple[str, str]]:
    """Return the name and the arguments of each job."""
    if shards <= 1:
        return [("", arguments)]
    names = [f"{index}/{shards}" for index in range(1, shards + 1)]
    return [(f" {shard}", f"{arguments} --shard {shard}".strip()) for shard in names]


def artifact_name(*parts: str) -> str:
    """Join the parts in characters that every system accepts in a file's name."""
    return re.sub("[^A-Za-z0-9._]+", "-", "-".join(filter(None, parts))).strip("-")


def tags_of(row: CiJob, occasion: str, caller: Caller) -> Sequence[str]:
    """The tags to run. A caller's suite runs in full, unless the caller names tags. The gate and pull
    requests run only the quick programs of our suite."""
    quick = not caller.suites and (occasion == "gate" or row.stage == GATE)
    return caller.tags or (("pr",) if quick else ())


def changed_files(base: str, repository: Path = ROOT) -> list[str] | None:
    """Return the files that were committed since the common ancestor with a commit, are changed in the
    checkout, or are new there; None if that is not known, as for a branch's first push."""
    if not base.strip("0"):
        return None
    try:
        ancestor = _git(repository, "merge-base", base, "HEAD").strip()
        names = _git(repository, "diff", "--name-only", "--no-renames", "-z", ancestor).split("\0")
        names += _git(repository, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    except CheckFailed as error:
        sys.stderr.write(
            f"what changed since {escape_line(base)} is not known: {escape_line(error.message)}\n"
        )
        return None
    return sorted({name for name in names if name})


def _git(folder: Path, *arguments: str) -> str:
    result = capture(["git", *arguments], cwd=folder)
    if result.returncode != 0:
        raise CheckFailed(f"git {' '.join(arguments)} failed in {folder}: {result.stderr.strip()}")
    return result.stdout
