"""Choose the jobs for a change: rows of manifests/gate.toml, by the changed files, split into shards."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.gate import GATE_TABLE
from ci.gate.table import CiJob, GateTable, gate_table, matches
from ci.github.matrix import configure, matrix_for
from ci.github.run_stage import OF_A_VERB, set_outputs, summarise, variables_of
from ci.github.verdict import Planned, PlannedJob
from ci.lanes.registry import lane_named
from ci.report.collect import GATE
from ci.report.page import cell, code
from ci.suite.options import Choice
from ci.suite.suite_file import lanes, lanes_of
from provisioning.base.command_line import Parser
from provisioning.base.commands import captured, repeated
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Metric
from provisioning.base.foreign import in_line
from provisioning.base.option_fields import read_options
from provisioning.base.selection import chip_named
from provisioning.base.settings import DEFAULT_PROFILE, ROOT
from provisioning.base.stage_run import RUN

OCCASIONS = ("gate", "nightly")
EXECUTORCH = "executorch"
"""The lane of the rows with `suite`, and of those for which no suite says another."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The repository that calls the gate, and the settings that it passes to the jobs."""

    profile: str
    executorch: bool = False
    """Whether it is a checkout of ExecuTorch."""
    is_self: bool = True
    """Whether it is this one."""
    suites: tuple[str, ...] = ()
    """The caller's suites of that lane, as paths from its root."""
    source: Path = ROOT
    """Where it is checked out."""
    stage_suites: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The caller's suites of other lanes, by stage."""
    tags: tuple[str, ...] = ()
    socs: str = ""
    shards: int = 0
    """At most so many jobs for a stage of its suite, in place of the table's number."""
    minutes: int = 0
    """After which a job of its suite ends, in place of the table's number."""
    work: tuple[str, ...] = ()
    """The flags of how the programs of its suite are worked on."""
    call: str = ""
    """Names this call of the gate: another one in the same workflow has another name."""

    def suites_of(self, row: CiJob) -> Sequence[str]:
        """The suites of another lane that the row runs in place of ours."""
        return self.stage_suites.get(row.stage, ()) if row.when == "gate" else ()

    def missing_input(self, row: CiJob) -> str:
        """What the row needs and this repository does not give; empty if it gives all."""
        if row.executorch and not self.executorch:
            return "the input executorch"
        if row.profiles and self.profile not in row.profiles:
            return f"the profile {' or '.join(row.profiles)}"
        return ""

    def has(self, row: CiJob) -> bool:
        """Whether the row is about this repository: another one has those of its suites and of its tree."""
        if self.is_self:
            return True
        if row.executorch or row.suite:
            return self.executorch if row.executorch else bool(self.suites)
        return bool(self.suites_of(row)) or not row.own


INPUTS = (
    *("OCCASION", "STAGES", "PROFILE", "SOC", "SUITE", "TAGS"),
    *("GATE_REQUIREMENTS", "EXECUTORCH", "RUNS_ON", "PREPARE", "VARIABLES", "JOBS", "TIMEOUT"),
    "UNRELATED",
)
"""What a call of gate.yml says of its work, in variables QNN_CI_…"""

LEAST_MINUTES = 10
"""A new runner takes up to five until the first model is compiled."""
MOST_MINUTES = 6 * 60
"""GitHub ends a job of its own runners then."""
MOST_SECONDS = MOST_MINUTES * 60

NO_RUNNER = re.compile(r"(?:windows|macos)(?:\W.*)?|(?:.*\W)?(?:arm64|arm|aarch64)", re.IGNORECASE)
"""The label of a runner with a system or a processor that QNN's compiler does not run on."""

MOST_LISTED = 100
"""Of unrelated files."""
READABLE = 60
"""At most so many characters of a call's name are for people."""

Matrix = Callable[[int, Sequence[str], Caller], Sequence[Mapping[str, object]]]
"""At most so many shards, the flags of the jobs and who calls give the entries of a matrix."""

Shards = Callable[[int], Sequence[Mapping[str, object]]]
"""The entries of the suite, in at most so many shards and in as few as are worth a job."""


def matrix_entries(shards: int, flags: Sequence[str], caller: Caller) -> list[dict[str, object]]:
    parser = Parser()
    configure(parser)
    args = parser.parse_args(["--shards", str(shards), *flags])
    environ = {**os.environ, "QNN_CI_SOC": caller.socs, "QNN_CI_PROFILE": caller.profile}
    suites = tuple(caller.source / suite for suite in caller.suites)
    choice = replace(read_options(Choice, args), suites=suites)
    return matrix_for(args, environ, choice, flags)["include"]


def plan(environ: Mapping[str, str], matrix: Matrix = matrix_entries) -> int:
    """Read QNN_CI_OCCASION, QNN_CI_BASE (a commit; empty: run everything), QNN_CI_UNRELATED, QNN_CI_STAGES,
    and what `caller_of` reads."""
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
    flags = suite_flags(occasion, caller)
    shards = functools.cache(lambda most: matrix(most, flags, caller))
    if not stages.strip():
        merge(choice, reasons, lambda most: shards(caller.shards or most))
    jobs = []
    for name, row in choice.items():
        entries = list(jobs_of(name, row, caller, flags, shards))
        if not entries:
            reasons[name] = "left out: the suite has no program for it"
        jobs += entries
    for name, why in reasons.items():
        sys.stdout.write(f"{name:<14} {in_line(why)}\n")
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
    """The files that the calling repository's change has, if all are of QNN_CI_UNRELATED; else none."""
    patterns = _several(environ, "QNN_CI_UNRELATED")
    if not patterns or occasion == "nightly":
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
    sys.stdout.writelines(f"unrelated: {in_line(file)}\n" for file in unrelated)
    planned = Planned(environ.get(RUN, ""), {}, {}, tuple(unrelated[:MOST_LISTED]))
    begin = artifact_name("reports", call_name(environ))
    set_outputs({"jobs": "[]", "artifacts": begin, "planned": planned.packed()}, environ)
    return 0


def report_of(job: Mapping[str, object]) -> str:
    """The stage whose report says how a job of the matrix ended."""
    stage, arguments = str(job["stage"]), str(job["arguments"])
    return arguments.partition(" ")[0] if stage in OF_A_VERB else stage


def programs_of(rows: Iterable[CiJob], occasion: str, caller: Caller) -> dict[str, list[str]]:
    """By stage: the programs that the rows' jobs have to come to a verdict on."""
    programs: dict[str, list[str]] = {}
    for row in rows:
        if row.suite:
            tags = tags_of(occasion, caller)
            stages = lanes()[EXECUTORCH].stages if row.stage == GATE else (row.stage,)
            programs |= dict.fromkeys(stages, names_of(EXECUTORCH, caller.suites, tags, caller))
        elif suites := caller.suites_of(row):
            lane = next(name for name, fields in lanes().items() if row.stage in fields.stages)
            programs[row.stage] = names_of(lane, suites, caller.tags, caller)
    return programs


def names_of(lane: str, suites: Sequence[str], tags: Sequence[str], caller: Caller) -> list[str]:
    """Of the programs that a stage of this lane chooses, as it chooses them."""
    socs = [chip_named(soc) for soc in caller.socs.split(",") if soc]
    files = [caller.source / suite for suite in suites]
    return lane_named(lane).suites.program_names(files, socs, caller.profile, tags)


def caller_of(environ: Mapping[str, str]) -> Caller:
    """Read QNN_CI_PROFILE, QNN_CI_SOC, QNN_CI_TAGS, QNN_CI_SUITE (paths in the calling repository, which is
    the workspace's folder QNN_CI_SOURCE), and as `true` or not QNN_CI_OWN (the calling repository is this
    one) and QNN_CI_EXECUTORCH (it is a checkout of ExecuTorch)."""
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
    own = tuple(suites.pop(EXECUTORCH, ()))
    return Caller(
        profile=environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE,
        executorch=environ.get("QNN_CI_EXECUTORCH") == "true",
        is_self=environ.get("QNN_CI_OWN", "true") == "true",
        suites=own,
        source=source,
        stage_suites={stage: files for lane, files in suites.items() for stage in lanes()[lane].stages},
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
    return (*repeated("--jobs", [jobs or None]), *repeated("--timeout", [timeout or None]))


def _number(environ: Mapping[str, str], variable: str, name: str, least: int, most: int) -> int:
    """0 if the caller gives none."""
    text = environ.get(variable, "")
    if text and not (text.isdecimal() and least <= int(text) <= most):
        raise UsageError(
            f"gate.yml's input {name}: {in_line(text)}",
            fix=f"give it a number from {least} to {most}, or leave it out",
        )
    return int(text or 0)


def submodule_of(name: str, source: Path) -> str:
    """The submodule of the repository that a file of this name is in; empty if it is in none."""
    try:
        text = (source / ".gitmodules").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    folders = re.findall(r"^\s*path\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return next((in_line(folder) for folder in folders if name.startswith(f"{folder}/")), "")


def refuse_runners(text: str) -> None:
    try:
        labels = json.loads(text or "[]")
    except ValueError:
        labels = [text]
    for label in [labels] if isinstance(labels, str) else labels:
        if NO_RUNNER.fullmatch(str(label)):
            raise UsageError(
                f"gate.yml's input runs-on: {in_line(str(label))}: QNN's compiler runs on x86-64 Linux alone",
                fix="give it a label of such runners, as ubuntu-24.04, or leave it out",
            )


def call_name(environ: Mapping[str, str]) -> str:
    """Readable at first, then a digest of all inputs that two calls of the gate can differ in."""
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
    """The rows to run, and for every row about this repository the reason why it runs or not.

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
        if row.replaces and (explicit or caller.is_self):
            reasons[name] = f"left out: it stands for {', '.join(row.replaces)}"
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


def merge(choice: dict[str, CiJob], reasons: dict[str, str], shards: Shards) -> None:
    """One job where another machine takes longer to be ready than it would work."""
    for name, row in [(name, row) for name, row in choice.items() if row.replaces]:
        counts = [choice[part].suite for part in row.replaces if part in choice and choice[part].suite]
        one_job = bool(counts) and len(shards(max(counts))) == 1
        for loser in row.replaces if one_job else (name,):
            if choice.pop(loser, None):
                reasons[loser] = (
                    f"left out: the job {name} does it" if one_job else "left out: too much for one job"
                )


def jobs_of(
    name: str, row: CiJob, caller: Caller, flags: Sequence[str], shards: Shards
) -> Iterator[dict[str, Metric]]:
    """The entries of gate.yml's matrix for this row: one job, or one for each shard."""
    parts = [("", row.arguments)]
    if row.replaces:
        # The gate's `provision` would take the components of all targets.
        # Other lanes have jobs of their own.
        skips = repeated("--skip", caller.stage_suites)
        parts = [("", shlex.join(["--target", row.targets, *flags, *caller.work, *skips]))]
    elif suites := caller.suites_of(row):
        own = [*_flags_of(suites, caller.tags), *caller.work]
        parts = _in_shards(shlex.join(own), caller.shards)
    elif row.suite:
        most = caller.shards or row.suite
        work = shlex.join(caller.work)
        parts = [(f" {entry['shard']}", f"{entry['arguments']} {work}") for entry in shards(most)]
    else:
        parts = _in_shards(row.arguments, row.shards)
    theirs = bool(caller.suites_of(row) or (caller.suites and (row.suite or row.replaces)))
    for shard, arguments in parts:
        yield {
            "name": f"{name}{shard}",
            "artifact": artifact_name("reports", caller.call, name, shard.replace("/", " of ")),
            "stage": row.stage,
            "arguments": arguments.strip(),
            "minutes": (caller.minutes if theirs else 0) or row.minutes,
            "provision": row.provision,
            "targets": row.targets,
            "theirs": theirs,
            "runner": row.runner,
            "submodules": "recursive" if row.submodules else "false",
            "packages": " ".join(row.packages),
            "variables": shlex.join(f"{name}={value}" for name, value in row.variables.items()),
            "root": row.root,
            "remembers": row.remembers,
        }


def _in_shards(arguments: str, shards: int) -> list[tuple[str, str]]:
    """The name and the arguments of each job."""
    if shards <= 1:
        return [("", arguments)]
    names = [f"{index}/{shards}" for index in range(1, shards + 1)]
    return [(f" {shard}", f"{arguments} --shard {shard}".strip()) for shard in names]


def artifact_name(*parts: str) -> str:
    """In the characters that every system takes in a file's name."""
    return re.sub("[^A-Za-z0-9._]+", "-", "-".join(filter(None, parts))).strip("-")


def suite_flags(occasion: str, caller: Caller) -> list[str]:
    return _flags_of(caller.suites, tags_of(occasion, caller))


def tags_of(occasion: str, caller: Caller) -> tuple[str, ...]:
    """A caller's suite runs in full, unless it names tags; of ours a pull request runs the quick programs."""
    return caller.tags or (("pr",) if occasion == "gate" and not caller.suites else ())


def _flags_of(suites: Sequence[str], tags: Sequence[str]) -> list[str]:
    return [*repeated("--suite", suites), *repeated("--tag", tags)]


def changed_files(base: str, repository: Path = ROOT) -> list[str] | None:
    """The files that were committed since the common ancestor with a commit, are changed in the checkout, or
    are new there; None if that is not known, as for a branch's first push."""
    if not base.strip("0"):
        return None
    try:
        ancestor = _git(repository, "merge-base", base, "HEAD").strip()
        names = _git(repository, "diff", "--name-only", "--no-renames", "-z", ancestor).split("\0")
        names += _git(repository, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    except CheckFailed as error:
        sys.stderr.write(f"what changed since {in_line(base)} is not known: {in_line(error.message)}\n")
        return None
    return sorted({name for name in names if name})


def _git(folder: Path, *arguments: str) -> str:
    result = captured(["git", *arguments], cwd=folder)
    if result.returncode != 0:
        raise CheckFailed(f"git {' '.join(arguments)} failed in {folder}: {result.stderr.strip()}")
    return result.stdout
