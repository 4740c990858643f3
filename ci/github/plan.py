"""Which jobs a change needs: rows of manifests/gate.toml, filtered by what changed, split into shards."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ci.github.files import give, summarise
from provisioning.errors import UsageError
from provisioning.manifest import Model, load
from provisioning.rendering.job_summary import cell
from provisioning.settings import DEFAULT_PROFILE, MANIFESTS, ROOT

TABLE = MANIFESTS / "gate.toml"
OCCASIONS = ("gate", "nightly")


class Row(Model):
    stage: str
    minutes: Annotated[int, Field(gt=0, le=360)]
    arguments: str = ""
    paths: tuple[str, ...] = ()
    shards: Annotated[int, Field(ge=1)] = 1
    suite: Annotated[int, Field(ge=0)] = 0
    provision: bool = False
    targets: str = "x86_64-linux"
    executorch: bool = False
    profiles: tuple[str, ...] = ()
    when: Literal["gate", "nightly"] = "gate"


class Table(Model):
    everywhere: tuple[str, ...]
    row: dict[str, Row]


@dataclass(frozen=True, slots=True)
class Having:
    """What the calling repository gives the jobs."""

    profile: str
    executorch: bool
    """Whether it is a checkout of ExecuTorch."""

    def lacks(self, row: Row) -> str:
        if row.executorch and not self.executorch:
            return "the input executorch"
        if row.profiles and self.profile not in row.profiles:
            return f"the profile {' or '.join(row.profiles)}"
        return ""


def run(environ: Mapping[str, str]) -> int:
    """Reads QNN_CI_OCCASION, QNN_CI_BASE (a commit, or nothing for everything), QNN_CI_STAGES, QNN_CI_PROFILE
    and QNN_CI_EXECUTORCH (`true` if the calling repository is a checkout of it)."""
    table = load_table()
    occasion = environ.get("QNN_CI_OCCASION") or "gate"
    if occasion not in OCCASIONS:
        raise UsageError(f"QNN_CI_OCCASION={occasion}: expected one of {', '.join(OCCASIONS)}")
    base = environ.get("QNN_CI_BASE", "")
    changed = None if occasion == "nightly" else changed_files(base)
    rows = named_only(table.row, environ.get("QNN_CI_STAGES", ""))
    having = Having(
        environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE, environ.get("QNN_CI_EXECUTORCH") == "true"
    )
    chosen, reasons = choose(rows, table.everywhere, occasion, changed, having)
    since = base if changed is not None else ""
    jobs = [job for name, row in chosen.items() for job in jobs_of(name, row, occasion, since)]
    if not jobs:
        raise UsageError(
            "no job is left to run", remedy=f"name stages that {TABLE.relative_to(ROOT)} has: QNN_CI_STAGES"
        )
    lines = ["### The plan", "", "| job | why |", "| --- | --- |"]
    lines += [f"| {cell(name)} | {cell(why)} |" for name, why in reasons.items()]
    summarise("\n".join([*lines, "", ""]), environ)
    for name, why in reasons.items():
        sys.stdout.write(f"{name:<14} {why}\n")
    give({"jobs": json.dumps(jobs)}, environ)
    return 0


def load_table(path: Path = TABLE) -> Table:
    return load(path, Table)


def named_only(rows: Mapping[str, Row], stages: str) -> dict[str, Row]:
    """The rows that an adopting repository asked for, by name or stage; all, if it asked for none."""
    wanted = set(stages.replace(",", " ").split())
    known = {*rows, *(row.stage for row in rows.values())}
    for name in wanted - known:
        raise UsageError(f"there is no job {name!r}", remedy=f"use some of: {', '.join(sorted(known))}")
    return {name: row for name, row in rows.items() if not wanted or {name, row.stage} & wanted}


def choose(
    rows: Mapping[str, Row],
    everywhere: Sequence[str],
    occasion: str,
    changed: Sequence[str] | None,
    having: Having,
) -> tuple[dict[str, Row], dict[str, str]]:
    """The rows to run, and of every row in words why or why not. `changed` is None when it is not known."""
    chosen: dict[str, Row] = {}
    reasons: dict[str, str] = {}
    decisive = next((f for f in changed or () if matches(f, everywhere)), "")
    for name, row in rows.items():
        if row.when == "nightly" and occasion != "nightly":
            reasons[name] = "left out: runs nightly"
            continue
        if lacking := having.lacks(row):
            reasons[name] = f"left out: needs {lacking}"
            continue
        hit = next((f for f in changed or () if matches(f, row.paths)), "")
        if not row.paths:
            reasons[name] = "always runs"
        elif changed is None:
            reasons[name] = "runs: what changed is not asked or not known"
        elif hit or decisive:
            reasons[name] = f"runs: {hit or decisive} changed"
        else:
            reasons[name] = "left out: nothing it depends on changed"
            continue
        chosen[name] = row
    return chosen, reasons


def jobs_of(name: str, row: Row, occasion: str, base: str) -> Iterator[dict[str, Any]]:
    """What gate.yml's matrix has for this row: a job, or one for each shard."""
    parts = [("", row.arguments)]
    if row.suite:
        entries = suite_matrix(row.suite, occasion, base)
        parts = [(f" {entry['shard']}", str(entry["arguments"])) for entry in entries]
    elif row.shards > 1:
        shards = [f"{index}/{row.shards}" for index in range(1, row.shards + 1)]
        parts = [(f" {shard}", f"{row.arguments} --shard {shard}".strip()) for shard in shards]
    for shard, arguments in parts:
        yield {
            "name": f"{name}{shard}",
            "artifact": f"reports-{name}{shard}".replace(" ", "-").replace("/", "-of-"),
            "stage": row.stage,
            "arguments": arguments,
            "minutes": row.minutes,
            "provision": row.provision,
            "targets": row.targets,
        }


def suite_matrix(shards: int, occasion: str, base: str) -> list[dict[str, Any]]:
    """What `nox -s matrix` says: on a pull request the quick programs that the change may concern."""
    flags = ["--tag", "pr"] if occasion == "gate" else []
    flags += ["--changed-since", base] if base else []
    command = [sys.executable, "-m", "ci", "matrix", "--shards", str(shards), *flags]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{' '.join(command[1:])} ended with {done.returncode}", remedy="nox -s matrix")
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


def matches(name: str, patterns: Iterable[str]) -> bool:
    """`*` stays within a folder, `**` does not."""
    return any(_pattern(pattern).fullmatch(name) for pattern in patterns)


def _pattern(pattern: str) -> re.Pattern[str]:
    parts = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(parts.get(part) or re.escape(part) for part in re.split(r"(\*\*|\*)", pattern)))
