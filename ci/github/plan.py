"""Choose the jobs for a change: rows of manifests/gate.toml, by the changed files, split into shards."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.gate_table import GATE_TABLE, GateTable, Row, gate_table, matches
from ci.github.files import give, summarise
from provisioning.base.errors import UsageError
from provisioning.base.rendering.job_summary import cell
from provisioning.base.settings import DEFAULT_PROFILE, ROOT

OCCASIONS = ("gate", "nightly")

WORTH_A_JOB = 90
"""Seconds of work: less than that is no reason for one more machine, which takes a minute to be ready."""


@dataclass(frozen=True, slots=True)
class Having:
    """What the calling repository is, and what it gives the jobs."""

    profile: str
    executorch: bool = False
    """Whether it is a checkout of ExecuTorch."""
    own: bool = True
    """Whether it is this one."""
    suites: tuple[str, ...] = ()
    """Its own, as paths that the stages understand."""
    tags: tuple[str, ...] = ()
    socs: str = ""

    def lacks(self, row: Row) -> str:
        if row.executorch and not self.executorch:
            return "the input executorch"
        if row.profiles and self.profile not in row.profiles:
            return f"the profile {' or '.join(row.profiles)}"
        return ""

    def about_others(self, row: Row) -> str:
        """Why another repository does not want the row unless it names it."""
        if self.own:
            return ""
        if row.suite and not self.suites:
            return "there is no suite, and it is not named in stages"
        return "it is about the toolkit, and not named in stages" if row.own else ""


def run(environ: Mapping[str, str]) -> int:
    """Reads QNN_CI_OCCASION, QNN_CI_BASE (a commit, or nothing for everything), QNN_CI_STAGES and what
    `having_of` reads."""
    table = gate_table()
    occasion = environ.get("QNN_CI_OCCASION") or "gate"
    if occasion not in OCCASIONS:
        raise UsageError(f"QNN_CI_OCCASION={occasion}: expected one of {', '.join(OCCASIONS)}")
    base = environ.get("QNN_CI_BASE", "")
    changed = None if occasion == "nightly" else changed_files(base)
    stages = environ.get("QNN_CI_STAGES", "")
    rows = named_only(table.row, stages)
    having = having_of(environ)
    chosen, reasons = choose(table, rows, occasion, changed, having, named=bool(stages.strip()))
    since = base if changed is not None else ""
    jobs = []
    for name, row in chosen.items():
        mine = list(jobs_of(name, row, occasion, since, having))
        if not mine:
            reasons[name] = "left out: the change concerns no program of the suite"
        jobs += mine
    for name, why in reasons.items():
        sys.stdout.write(f"{name:<14} {why}\n")
    if not jobs:
        raise UsageError(
            "no job is left to run",
            remedy=f"name stages that {GATE_TABLE.relative_to(ROOT)} has, or a suite: gate.yml's inputs",
        )
    lines = ["### The plan", "", "| job | why |", "| --- | --- |"]
    lines += [f"| {cell(name)} | {cell(why)} |" for name, why in reasons.items()]
    summarise("\n".join([*lines, "", ""]), environ)
    give({"jobs": json.dumps(jobs), "targets": shared_targets(jobs, having.profile)}, environ)
    return 0


def having_of(environ: Mapping[str, str]) -> Having:
    """Reads QNN_CI_PROFILE, QNN_CI_SOC, QNN_CI_TAGS, QNN_CI_SUITE (paths in the calling repository, which
    QNN_CI_SOURCE names as a folder of the workspace), and of QNN_CI_OWN and QNN_CI_EXECUTORCH whether they
    are `true`: the calling repository is this one, or is a checkout of ExecuTorch."""
    source = Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_SOURCE", "")).absolute()
    suites = []
    for name in _several(environ, "QNN_CI_SUITE"):
        file = source / name
        if not file.is_file() or not file.resolve().is_relative_to(source.resolve()):
            raise UsageError(
                f"the suite {name}: there is no such file in the calling repository",
                remedy="give gate.yml's input suite a path that begins at the repository's root",
            )
        # Not absolute: the workspace of the job that runs it may be elsewhere.
        suites.append(os.path.relpath(file, ROOT))
    return Having(
        profile=environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE,
        executorch=environ.get("QNN_CI_EXECUTORCH") == "true",
        own=environ.get("QNN_CI_OWN", "true") == "true",
        suites=tuple(suites),
        tags=_several(environ, "QNN_CI_TAGS"),
        socs=",".join(_several(environ, "QNN_CI_SOC")),
    )


def _several(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in re.split(r"[,\n]", environ.get(name, "")) if one.strip())


def named_only(rows: Mapping[str, Row], stages: str) -> dict[str, Row]:
    """The rows that an adopting repository asked for, by name or stage; all, if it asked for none."""
    wanted = set(stages.replace(",", " ").split())
    known = {*rows, *(row.stage for row in rows.values())}
    for name in wanted - known:
        raise UsageError(f"there is no job {name!r}", remedy=f"use some of: {', '.join(sorted(known))}")
    return {name: row for name, row in rows.items() if not wanted or {name, row.stage} & wanted}


def choose(
    table: GateTable,
    rows: Mapping[str, Row],
    occasion: str,
    changed: Sequence[str] | None,
    having: Having,
    *,
    named: bool = False,
) -> tuple[dict[str, Row], dict[str, str]]:
    """The rows to run, and of every row in words why or why not. `changed` is None when it is not known.

    What was `named` runs on any occasion and in any repository; that it cannot is an error, not a row less.
    """
    chosen: dict[str, Row] = {}
    reasons: dict[str, str] = {}
    for name, row in rows.items():
        lacking = having.lacks(row)
        if named and lacking:
            raise UsageError(
                f"the job {name} was named, and needs {lacking}",
                remedy="give gate.yml that input, or leave the job out of stages",
            )
        if row.when == "nightly" and occasion != "nightly" and not named:
            reasons[name] = "left out: runs nightly"
            continue
        if lacking:
            reasons[name] = f"left out: needs {lacking}"
            continue
        if not named and (why := having.about_others(row)):
            reasons[name] = f"left out: {why}"
            continue
        ignored = table.ignored_by(row)
        cause = next((file for file in changed or () if not matches(file, ignored)), "")
        if not ignored:
            reasons[name] = "always runs"
        elif changed is None:
            reasons[name] = "runs: which files changed is not known"
        elif cause:
            reasons[name] = f"runs: {cause} changed"
        else:
            reasons[name] = "left out: only files that it ignores changed"
            continue
        chosen[name] = row
    return chosen, reasons


def jobs_of(name: str, row: Row, occasion: str, base: str, having: Having) -> Iterator[dict[str, Any]]:
    """What gate.yml's matrix has for this row: a job, or one for each shard."""
    parts = [("", row.arguments)]
    if row.suite:
        entries = suite_matrix(row.suite, occasion, base, having)
        parts = [(f" {entry['shard']}", str(entry["arguments"])) for entry in entries]
    elif row.shards > 1:
        shards = [f"{index}/{row.shards}" for index in range(1, row.shards + 1)]
        parts = [(f" {shard}", f"{row.arguments} --shard {shard}".strip()) for shard in shards]
    suites = [Path(suite).stem for suite in having.suites] if row.suite else []
    for shard, arguments in parts:
        yield {
            "name": f"{name}{shard}",
            "artifact": artifact_name("reports", having.profile, *suites, name, shard.replace("/", " of ")),
            "stage": row.stage,
            "arguments": arguments,
            "minutes": row.minutes,
            "provision": row.provision,
            "targets": row.targets,
            "runner": row.runner,
            "submodules": "recursive" if row.submodules else "false",
            "packages": " ".join(row.packages),
        }


def shared_targets(jobs: Sequence[Mapping[str, Any]], profile: str) -> str:
    """What is provisioned once for the jobs after it, by way of the cache: what two of them share, if it may
    be there at all."""
    from ci.github.place import Wanted, may_be_cached

    if not may_be_cached(Wanted(profile, (), (), ())):
        return ""
    needed = Counter(job["targets"] for job in jobs if job["provision"])
    return next((target for target, count in needed.most_common(1) if count > 1), "")


def artifact_name(*parts: str) -> str:
    """One that a workflow which calls the gate twice, for two profiles or suites, does not use twice."""
    return re.sub("[^A-Za-z0-9._]+", "-", "-".join(filter(None, parts))).strip("-")


def suite_matrix(most: int, occasion: str, base: str, having: Having) -> list[dict[str, Any]]:
    """What `nox -s matrix` says, in as few shards as are worth a job. Of a calling repository's suite that is
    all, unless it named tags; of ours on a pull request the quick programs that the change may concern."""
    flags = [part for suite in having.suites for part in ("--suite", suite)]
    tags = having.tags or (("pr",) if occasion == "gate" and not having.suites else ())
    flags += [part for tag in tags for part in ("--tag", tag)]
    flags += ["--changed-since", base] if base else []
    entries = _matrix(most, tuple(flags), having)
    enough = math.ceil(sum(int(entry["seconds"]) for entry in entries) / WORTH_A_JOB)
    return entries if enough >= len(entries) else _matrix(max(1, enough), tuple(flags), having)


@functools.cache
def _matrix(shards: int, flags: tuple[str, ...], having: Having) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "ci", "matrix", "--shards", str(shards), *flags]
    # The jobs take chips from their environment, so that these must not be named in their arguments.
    environ = {**os.environ, "QNN_CI_SOC": having.socs}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        said = done.stderr.strip().removeprefix("error: ").split("\n")[0]
        raise UsageError(
            f"nox -s matrix ended with exit code {done.returncode}: {said}",
            remedy=shlex.join(["nox", "-s", "matrix", "--", *command[4:]]),
        )
    entries: list[dict[str, Any]] = json.loads(done.stdout)["include"]
    return entries


def changed_files(base: str) -> list[str] | None:
    """What differs from a commit; None when that cannot be told, as for a branch's first push."""
    if not base.strip("0"):
        return None
    done = subprocess.run(
        ["git", "diff", "--name-only", "--no-renames", "-z", f"{base}...HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(f"what changed since {base} is not known: {done.stderr.strip()}\n")
        return None
    return sorted(name for name in done.stdout.split("\0") if name)
