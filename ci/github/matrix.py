"""`matrix`: the suite as the JSON of a CI matrix, in shards of equal length; also only what changed."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ci.engine.jobs import Job
from ci.github.files import append
from ci.lanes.executorch.verb import SUITE
from ci.pipeline.flags import add_choice, check
from ci.pipeline.shards import shard
from provisioning.base import toml
from provisioning.base.command_line import count, switch, valued
from provisioning.base.commands import captured, leave_out
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.files import write_named
from provisioning.base.secrets import RESULTS, URL
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import ROOT

EXAMPLES = """\
  nox -s matrix -- --shards 4
  nox -s matrix -- --shards 4 --tag nightly --changed-since origin/main
  nox -s matrix -- --changed-since HEAD~1 --github
  nox -s matrix -- --suite ../mine/models.toml --changed-since origin/main
"""

STAGES = ("test_lowering", "test_emulator")
"""The stages that run these programs."""

WORTH_A_JOB = 90
"""Seconds of work: less does not pay for one more machine, which takes a minute to be ready."""

PAGES = (".md", ".rst")
"""Harmless in any repository. .txt is not: a factory may read such a file, and CMakeLists.txt is one."""

MODELS = "ci/pipeline/models/shipped/"
"""Our own models: like a user's, each affects only the cases that import it."""


@dataclass(frozen=True, slots=True)
class Affected:
    """The cases that a change may affect; None is all of them, and `why` names the file that is the
    reason."""

    cases: frozenset[str] | None
    why: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_choice(parser, SUITE)
    group = parser.add_argument_group("matrix")
    valued(
        group,
        "--shards",
        "N",
        "at most this many jobs; fewer where one more would not pay [%(default)s]",
        type=count,
        default=4,
    )
    valued(
        group,
        "--changed-since",
        "REF",
        "only cases that changes since this commit may affect; all cases if that is not certain",
    )
    group.add_argument(
        "--format",
        choices=("github", "gitlab"),
        default="github",
        help="the matrix of GitHub, or a child pipeline of GitLab (docs/github.md) [%(default)s]",
    )
    valued(
        group,
        "--image",
        "IMAGE",
        "image of GitLab's child jobs, which do not inherit their parent's [CI_JOB_IMAGE]",
    )
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there [stdout]")
    switch(group, "--github", "also write matrix= and empty= to the file GITHUB_OUTPUT names")


def run(args: argparse.Namespace) -> int:
    from ci.lanes.executorch.stage import jobs_of
    from ci.lanes.executorch.suite import all_programs, choose

    check(args.suite or ())
    selection = selection_of(args)
    suites = [path.absolute() for path in args.suite or ()]
    programs = choose(
        all_programs(suites, selection.named_socs),
        tags=args.tag or (),
        words=args.words or (),
        cases=args.case or (),
    )
    # As typed, for the jobs.
    choice = [*_each("--suite", args.suite), *_each("--tag", args.tag), *_each("-k", args.words)]
    choice += [*_each("--soc", args.soc), *_each("--profile", args.profile and [args.profile])]
    flags = [*choice, *_each("--case", args.case)]
    if args.changed_since:
        folders = {program.search_path for program in programs}
        affected = affected_cases(programs, changed_since(args.changed_since, folders), args.changed_since)
        if affected.cases is None:
            sys.stderr.write(f"everything: {affected.why} may concern any case\n")
        else:
            programs = [program for program in programs if program.case_name in affected.cases]
            flags = [*choice, *_each("--case", sorted({p.case_name for p in programs}))]
    matrix = matrix_of(jobs_of(programs, selection.profile), args.shards, flags)
    text = json.dumps(matrix)
    image = args.image or os.environ.get("CI_JOB_IMAGE", "")
    protected = is_protected(os.environ)
    pushes = protected and bool(os.environ.get(URL))
    pipeline = gitlab_pipeline(matrix["include"], remembers=protected, pushes=pushes, image=image)
    shown = text if args.format == "github" else json.dumps(pipeline, indent=2)
    if args.output:
        write_named(args.output, f"{shown}\n", fix="name another --output")
    else:
        sys.stdout.write(f"{shown}\n")
    if args.github:
        if not os.environ.get("GITHUB_OUTPUT"):
            message = "--github: GITHUB_OUTPUT is not set"
            raise UsageError(message, fix=leave_out("--github", "; the JSON is on stdout"))
        append("GITHUB_OUTPUT", f"matrix={text}\nempty={str(not matrix['include']).lower()}\n", os.environ)
    return 0


def matrix_of(jobs: Sequence[Job], shards: int, flags: Sequence[str]) -> dict[str, list[dict[str, object]]]:
    """One entry for each shard with programs; `arguments` follow the session's `--`."""
    worth = math.ceil(sum(job.seconds for job in jobs) / WORTH_A_JOB)
    count = min(shards, len(jobs), max(1, worth))
    include: list[dict[str, object]] = []
    for index in range(1, count + 1):
        mine = shard(jobs, index, count)
        include.append(
            {
                "shard": f"{index}/{count}",
                "programs": len(mine),
                "seconds": round(sum(job.seconds for job in mine)),
                "arguments": shlex.join([*flags, "--shard", f"{index}/{count}"]),
            }
        )
    return {"include": include}


def is_protected(environ: Mapping[str, str]) -> bool:
    """Whether GitLab runs this for a protected branch itself, and not for a merge request."""
    return environ.get("CI_COMMIT_REF_PROTECTED") == "true" and bool(environ.get("CI_COMMIT_BRANCH"))


def gitlab_pipeline(
    shards: Sequence[Mapping[str, object]],
    *,
    remembers: bool = False,
    pushes: bool = False,
    image: str = "",
) -> dict[str, object]:
    """A child pipeline, as JSON, which is YAML too. It always has a job: GitLab refuses an empty one. Without
    an image a job runs in the runner's own.

    With `remembers`, jobs use GitLab's cache, which has the verdicts of earlier ones. Not for merge requests:
    they share one cache, which each of them can write. With `pushes`, a last job, which runs no model,
    uploads what they packed for the remote cache: its environment alone has the key."""
    common: dict[str, object] = {"image": image} if image else {}
    if not shards:
        nothing = {"script": ["echo 'the change concerns no program of the suite'"]}
        return {"nothing to do": common | nothing}
    toolkit = "nox -f qnn-ci/noxfile.py -s"
    start = (
        'git clone --quiet "$QNN_CI_REPOSITORY" qnn-ci',
        'git -C qnn-ci checkout --quiet "$QNN_CI_COMMIT"',
        "python3 -m pip install --quiet --require-hashes --no-deps -r qnn-ci/manifests/locks/nox.txt",
    )
    jobs: dict[str, object] = {}
    for entry in shards:
        arguments = str(entry["arguments"])
        # One name, one cache: shards that shared a key would overwrite each other's.
        key = f"qnn-ci-{str(entry['shard']).replace('/', '-of-')}"
        jobs[f"qnn {entry['shard']}"] = common | {
            "script": [
                *start,
                f"{toolkit} provision validate",
                f"{toolkit} test_lowering -- {arguments}",
                f"{toolkit} build_runner",
                f"{toolkit} test_emulator -- {arguments}",
            ],
            "after_script": [
                f"{toolkit} report -- --format junit -o reports/junit.xml",
                f"{toolkit} report -- --format code-quality -o reports/code-quality.json",
            ],
            "variables": {
                "QNN_CI_STORE": "$CI_PROJECT_DIR/.qnn-ci",
                "QNN_CI_REPORTS": "$CI_PROJECT_DIR/reports",
                **({RESULTS: "$CI_PROJECT_DIR/results"} if pushes else {}),
            },
            **({"cache": {"key": key, "paths": [".qnn-ci/cache/memo/"]}} if remembers else {}),
            "artifacts": {
                "when": "always",
                "paths": ["reports/", *(["results/"] if pushes else [])],
                "reports": {"junit": "reports/junit.xml", "codequality": "reports/code-quality.json"},
            },
        }
    if pushes:
        jobs["push"] = common | {
            "stage": ".post",
            "environment": "qnn-ci-cache",
            "script": [*start, f"{toolkit} cache -- push results"],
        }
    return jobs


def affected_cases(programs: Sequence[object], changed: Iterable[Path], ref: str) -> Affected:
    """A file that a factory imports affects its cases; a file that is not known to be harmless
    affects all."""
    from ci.gate.table import gate_table
    from ci.lanes.executorch.suite import ExecutorchProgram
    from ci.pipeline.models.imports import closure

    @cache
    def needed(module: str, search_path: Path) -> frozenset[Path]:
        return closure(module, [search_path, ROOT])

    owners: dict[Path, set[str]] = {}
    suites: set[Path] = set()
    for program in programs:
        assert isinstance(program, ExecutorchProgram)
        suites.add(program.suite)
        named = (*program.case.files, program.case.factory, program.run.precision_file)
        files = {program.search_path / name for name in named if name}
        for dotted in (program.case.factory, *program.run.annotations):
            files |= needed(dotted.partition(":")[0], program.search_path)
        for path in files:
            owners.setdefault(path, set()).add(program.case_name)
    ignored = gate_table().ignored_by_stages(STAGES)
    cases: set[str] = set()
    for path in changed:
        if path in suites:
            differing = _differing_cases(path, ref)
            if differing is None:
                return Affected(None, _shown(path))
            cases |= differing
        elif path in owners and not _is_toolkit_code(path):
            cases |= owners[path]
        elif not _is_ignored(path, ignored):
            return Affected(None, _shown(path))
    return Affected(frozenset(cases))


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def _is_toolkit_code(path: Path) -> bool:
    name = _shown(path)
    return name.startswith(("ci/", "provisioning/")) and not name.startswith(MODELS)


def _is_ignored(path: Path, patterns: Sequence[str]) -> bool:
    from ci.gate.table import matches

    if path.is_relative_to(ROOT):
        return matches(_shown(path), patterns)
    return path.name.endswith(PAGES)


def _differing_cases(suite: Path, ref: str) -> set[str] | None:
    """Cases whose definition changed; None if the earlier suite cannot be read."""
    from ci.lanes.executorch.suite import SUITES

    try:
        text = _git(suite.parent, "show", f"{ref}:./{suite.name}")
        then = SUITES.parse(toml.loads(text), suite).cases.get(SUITES.lane, {})
    except (UsageError, ManifestError, ValueError):
        return None
    now = SUITES.load(suite).cases[SUITES.lane]
    return {name for name in now.keys() | then.keys() if now.get(name) != then.get(name)}


def changed_since(ref: str, folders: Iterable[Path]) -> list[Path]:
    """The files that changed in the repositories of these folders; `ref` is a commit of each."""
    tops = {Path(_git(folder, "rev-parse", "--show-toplevel").rstrip("\n")) for folder in folders}
    return sorted(top / name for top in tops for name in changed_files(ref, top))


def changed_files(ref: str, repository: Path) -> list[str]:
    """Files committed since the common ancestor with `ref`, changed in the checkout, or new there."""
    base = _git(repository, "merge-base", ref, "HEAD").strip()
    names = _git(repository, "diff", "--name-only", "--no-renames", "-z", base).split("\0")
    names += _git(repository, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return sorted({name for name in names if name})


def _git(folder: Path, *arguments: str) -> str:
    result = captured(["git", *arguments], cwd=folder)
    if result.returncode != 0:
        raise UsageError(
            f"git {' '.join(arguments)} failed in {folder}: {result.stderr.strip()}",
            fix="name a commit that this clone has; CI checks out with its history (fetch-depth: 0)",
        )
    return result.stdout


def _each(flag: str, values: Iterable[object] | None) -> list[str]:
    return [part for value in values or () for part in (flag, str(value))]
