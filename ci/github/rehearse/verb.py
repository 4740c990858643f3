"""Rehearse a workflow: take a snapshot of the repository, make an event, run the jobs, show the results."""

from __future__ import annotations

import argparse
import fnmatch
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ci.github.rehearse.equivalents import Machine, Repository
from ci.github.rehearse.expression import Value
from ci.github.rehearse.model import Workflow, matrix_rows, read_workflow
from ci.github.rehearse.rehearsal import Choice, Event, JobResult, Rehearsal, fresh_environment, pairs
from ci.github.rehearse.runner import called_from, run_workflow
from provisioning.base import units
from provisioning.base.commands import captured
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.findings import Metric, Outcome, Report, Severity
from provisioning.base.rendering.terminal import rendered, table, terminal_width, wants_colour, write
from provisioning.base.settings import ROOT, reports_path
from provisioning.base.stage_run import StageRun

OWNER = "rehearsal"
TOOLKIT = "qnn-ci"
DEFAULT_BRANCH = "main"
LEVELS = {"error": Severity.ERROR, "warning": Severity.WARNING, "notice": Severity.NOTE}
TAIL = 30
"""Lines of a failed job's log shown; its file has them all."""


def rehearse(args: argparse.Namespace) -> int:
    root = (args.root or ROOT).resolve()
    reports = reports_path(args.reports).absolute()
    stage = StageRun.as_typed("rehearse", "", "")
    results: list[JobResult] | None
    with _scratch(keep=args.keep) as scratch, stage.reported(reports, "rehearse.fault", args.workflow):
        if args.times:
            results = _timed_cases(args, root, scratch, reports, stage)
        else:
            results = _run(args, root, scratch, reports)
    if results is None:
        return 0
    return _conclude(results, stage, reports)


def _timed_cases(
    args: argparse.Namespace, root: Path, scratch: Path, reports: Path, stage: StageRun
) -> list[JobResult]:
    """Three rehearsals that share their caches, and a table of what each took; the last one's jobs."""
    rows: list[tuple[str, ...]] = []
    cases: list[Metric] = []
    results: list[JobResult] = []
    shutil.rmtree(_cache(root), ignore_errors=True)
    for name, event, change in (
        ("cold", "push", ""),
        ("nothing changed", "pull_request", ""),
        (f"{args.times} changed", "pull_request", args.times),
    ):
        _print(f"━━ {name}")
        began = time.monotonic()
        case = argparse.Namespace(**{**vars(args), "event": event, "change": change, "list": False})
        folder = scratch / f"case-{len(rows)}"
        folder.mkdir()
        results = _run(case, root, folder, reports / f"case-{len(rows)}") or []
        wall = time.monotonic() - began
        ran = [job for job in results if job.result in ("success", "failure")]
        minutes = sum(math.ceil(job.seconds / 60) for job in ran)
        bad = [job.name for job in ran if job.result == "failure"]
        rows.append((name, f"{wall:.0f} s", str(minutes), str(len(ran)), ", ".join(bad)))
        cases.append(
            {"case": name, "wall_seconds": round(wall, 1), "billed_minutes": minutes, "jobs": len(ran)}
        )
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    columns = ("case", "wall time", "billed minutes", "jobs", "what failed")
    shown = table(columns, rows, right=frozenset({1, 2, 3}))
    write(rendered(shown, colour=wants_colour(sys.stdout), width=terminal_width()), sys.stdout)
    stage.metrics["cases"] = cases
    return results


def _cache(root: Path) -> Path:
    return ROOT / ".nox" / "rehearsal" / "cache" / root.name


def _changed(snapshot: Path, name: str) -> str:
    """Change a file of the snapshot, in a commit of its own."""
    file = snapshot / name
    if not file.is_file():
        raise UsageError(f"--times {name}: there is no such file", remedy="name the module of one model")
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n# changed\n")
    author = ["-c", "user.name=rehearsal", "-c", "user.email=rehearsal@localhost"]
    captured(["git", *author, "commit", "--quiet", "--no-verify", "--all", "--message", "x"], cwd=snapshot)
    return captured(["git", "rev-parse", "HEAD"], cwd=snapshot).stdout.strip()


def _run(args: argparse.Namespace, root: Path, scratch: Path, reports: Path) -> list[JobResult] | None:
    snapshot = scratch / "repository"
    sha, dirty = snapshot_of(root, snapshot, uncommitted=args.uncommitted)
    if change := getattr(args, "change", ""):
        sha = _changed(snapshot, change)
    own = root == ROOT.resolve()
    name = f"{OWNER}/{TOOLKIT if own else root.name}"
    toolkit = None
    if not own:
        clone = scratch / "toolkit"
        toolkit = Repository(TOOLKIT, clone, snapshot_of(ROOT, clone, uncommitted=args.uncommitted)[0])
    if dirty:
        hint = (
            "they are inside submodules or other repositories"
            if args.uncommitted
            else "--uncommitted takes them"
        )
        _print(f"note: {dirty} uncommitted changes are not rehearsed; {hint}")
    workflow = read_workflow(snapshot, f".github/workflows/{args.workflow.removesuffix('.yml')}.yml")
    event = make_event(workflow, args.event, _base(snapshot, args.base), sha, args.ref, repository=name)
    machine = Machine(Repository(name, snapshot, sha), _cache(root), scratch / "artifacts", toolkit)
    logs = reports / "rehearsal"
    rehearsal = Rehearsal(
        scratch=scratch / "jobs",
        machine=machine,
        event=event,
        env=fresh_environment(os.environ, args.env, ROOT / ".nox"),
        slots=threading.Semaphore(args.jobs),
        print=_print,
        logs=logs,
        default_branch=DEFAULT_BRANCH,
        variables=pairs("--var", args.var),
    )
    if args.list:
        _list(rehearsal, machine.repository, workflow)
        return None
    shutil.rmtree(logs, ignore_errors=True)
    _print(f"rehearsing {workflow.path} on {event.name} at {sha[:12]}, base {_base_of(event)}")
    choice = Choice(tuple(args.only), tuple(args.row))
    if workflow.events[event.name].get("inputs"):
        raise UsageError(
            f"{workflow.path}: inputs of {event.name} cannot be rehearsed", remedy="use another --event"
        )
    # As on GitHub, inputs of `workflow_call` exist and are empty after another event.
    inputs: Mapping[str, Value] = dict.fromkeys(workflow.inputs, "")
    results, _, _ = run_workflow(rehearsal, workflow, inputs, choice)
    ran = [job.name.rpartition(" / ")[2] for job in results if job.result != "left out"]
    for pattern in args.row:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in ran):
            raise UsageError(
                f"--row {pattern}: no such job was run; found {', '.join(ran)}",
                remedy="the plan may have left it out: choose another --base, or see `nox -s github -- plan`",
            )
    if args.keep:
        _print(f"workspaces: {scratch}")
    return results


def snapshot_of(root: Path, into: Path, *, uncommitted: bool) -> tuple[str, int]:
    """Clone the repository, with uncommitted changes if requested; returns the commit, and how many changes
    are left out."""
    git = shutil.which("git")
    if git is None:
        raise EnvironmentLacking("git is not installed", remedy="apt-get install git")

    def run(*command: str, cwd: Path) -> str:
        done = captured([git, *command], cwd=cwd)
        if done.returncode:
            raise EnvironmentLacking(
                f"git {command[0]} in {cwd}: {done.stderr.strip()}",
                remedy="rehearse a git checkout that has a commit",
            )
        return done.stdout

    def names(*command: str) -> set[str]:
        return {name for name in run(*command, "-z", cwd=root).split("\0") if name}

    # Jobs fetch from it and never write there, so the history need not be copied.
    run("clone", "--quiet", "--shared", str(root), str(into), cwd=root)
    run("config", "uploadpack.allowAnySHA1InWant", "true", cwd=into)
    # Compared with the commit: staged changes are uncommitted too.
    diff = ("diff", "--name-only", "--no-renames", "HEAD")
    entries = run("ls-tree", "-r", "-z", "HEAD", cwd=root) + run("ls-files", "-s", "-z", cwd=root)
    submodules = {entry.partition("\t")[2] for entry in entries.split("\0") if entry[:7] == "160000 "}
    changed = names(*diff) | names("ls-files", "--others", "--exclude-standard")
    # A submodule at another commit is taken. Uncommitted files inside it cannot be.
    inside = submodules & (changed - names(*diff, "--ignore-submodules=dirty"))
    nested = {name for name in changed if name.endswith("/")}
    lacking = inside | nested if uncommitted else changed
    taken = changed - lacking
    if not taken:
        return run("rev-parse", "HEAD", cwd=into).strip(), len(lacking)
    for name in taken - submodules:
        if (into / name).is_symlink() or (into / name).is_file():
            (into / name).unlink()
    for name in sorted(taken):
        source, target = root / name, into / name
        if name in submodules:
            head = run("rev-parse", "HEAD", cwd=source).strip() if (source / ".git").exists() else ""
            entry = ("--add", "--cacheinfo", f"160000,{head},{name}") if head else ("--force-remove", name)
            run("update-index", *entry, cwd=into)
        elif source.is_symlink() or source.is_file():
            if target.is_dir():
                shutil.rmtree(target)  # a file took its place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    author = ["-c", "user.name=rehearsal", "-c", "user.email=rehearsal@localhost"]
    paths = [name for name in taken if name not in submodules]
    if paths:
        run("add", "--all", "--", *paths, cwd=into)
    run(*author, "commit", "--quiet", "--no-verify", "--message", "What is not committed yet", cwd=into)
    return run("rev-parse", "HEAD", cwd=into).strip(), len(lacking)


def make_event(
    workflow: Workflow,
    wanted: str | None,
    base: str,
    sha: str,
    pushed: str | None = None,
    *,
    repository: str = f"{OWNER}/{TOOLKIT}",
) -> Event:
    """The event as GitHub sends it, with the fields that workflows of this repository read."""
    from ci.github.rehearse import EVENTS

    possible = [name for name in EVENTS if name in workflow.events]
    name = wanted or next(iter(possible), "")
    if name not in possible:
        raise UsageError(
            f"{workflow.path} does not run on {name or 'any event that can be rehearsed'}",
            remedy=f"use one of: {', '.join(possible) or 'a workflow that calls it'}",
        )
    described: Mapping[str, Value] = {
        "default_branch": DEFAULT_BRANCH,
        "full_name": repository,
        "fork": False,
    }
    main = f"refs/heads/{DEFAULT_BRANCH}"
    payload: dict[str, Value] = {"repository": described}
    if name == "pull_request":
        branch: Value = {"ref": "rehearsed", "sha": sha, "repo": described}
        onto: Value = {"ref": DEFAULT_BRANCH, "sha": base, "repo": described}
        payload["pull_request"] = {"number": 1, "draft": False, "head": branch, "base": onto}
        return Event(name, "refs/pull/1/merge", payload, base_ref=DEFAULT_BRANCH, head_ref="rehearsed")
    if name == "merge_group":
        ref = f"refs/heads/gh-readonly-queue/{DEFAULT_BRANCH}/pr-1-{base}"
        payload["merge_group"] = {"base_sha": base, "head_sha": sha, "base_ref": main, "head_ref": ref}
        return Event(name, ref, payload)
    if name == "push":
        ref = pushed or ("refs/tags/v0.0.0" if "tags" in workflow.events["push"] else main)
        payload |= {"before": base, "after": sha, "ref": ref}
        return Event(name, ref, payload)
    return Event(name, main, payload)


EVERYTHING = "none"
"""The value of --base for which everything counts as changed. GitHub sends zeros."""


def _base(snapshot: Path, wanted: str | None) -> str:
    if wanted == EVERYTHING:
        return "0" * 40
    done = captured(
        ["git", "rev-parse", "--verify", "--quiet", f"{wanted or 'HEAD^'}^{{commit}}"], cwd=snapshot
    )
    if done.returncode and wanted:
        raise UsageError(f"--base {wanted}: there is no such commit", remedy="--base HEAD^")
    return done.stdout.strip() or "0" * 40


def _base_of(event: Event) -> str:
    for name, key in (("pull_request", "base"), ("merge_group", "base_sha")):
        part = event.payload.get(name)
        if isinstance(part, Mapping):
            base = part[key]
            return str(base["sha"] if isinstance(base, Mapping) else base)[:12]
    return str(event.payload.get("before", "none"))[:12]


def _list(rehearsal: Rehearsal, repository: Repository, workflow: Workflow, indent: str = "") -> None:
    for job in workflow.jobs.values():
        needs = f", needs {', '.join(job.needs)}" if job.needs else ""
        rows = ""
        if isinstance(job.strategy.matrix, Mapping) and "${{" not in str(job.strategy.matrix):
            rows = f", {len(matrix_rows(job.strategy.matrix))} rows"
        elif job.strategy.matrix is not None:
            rows = ", rows known when it runs"
        _print(f"{indent}{job.id}{needs}{rows}")
        for step in job.steps:
            _print(f"{indent}  - {step.title}")
        if job.uses:
            called_repository, path = called_from(rehearsal, repository, job.uses)
            _list(rehearsal, called_repository, read_workflow(called_repository.root, path), indent + "  ")


def _conclude(results: Sequence[JobResult], stage: StageRun, reports: Path) -> int:
    """Show annotations, summaries and jobs as GitHub does, and write the report."""
    for job in results:
        if job.result in ("failure", "cancelled"):
            remedy = f"less {job.log}" if job.log else "fix the job that failed before it"
            stage.add("rehearse.job", Severity.ERROR, job.name, job.failure or job.result, remedy)
        if job.result == "left out":
            stage.add("rehearse.left-out", Severity.NOTE, job.name, "not chosen by --only or --row")
        for one in job.annotations:
            # Annotations of a job that passed do not fail the rehearsal.
            severity = LEVELS[one.level] if job.result == "failure" else Severity.NOTE
            stage.add(f"rehearse.{one.level}", severity, job.name, one.shown())
        if job.summary:
            summary = reports / "rehearsal" / f"{job.log.stem if job.log else job.name}.md"
            summary.parent.mkdir(parents=True, exist_ok=True)
            summary.write_text(job.summary, encoding="utf-8")
    _print("")
    for job in results:
        if job.result == "failure" and job.log is not None:
            _print(f"━━ {job.name}: the end of {job.log}")
            _print("\n".join(job.log.read_text(encoding="utf-8").splitlines()[-TAIL:]))
        for one in job.annotations:
            _print(f"{job.name}: {one.shown()}")
    rows = [
        (
            job.name,
            job.result,
            units.seconds(job.seconds),
            str(len(job.annotations)),
            job.failure.split("\n")[0],
        )
        for job in results
    ]
    columns = ("job", "result", "time", "annotations", "what failed")
    shown = table(columns, rows, right=frozenset({2, 3}))
    write(rendered(shown, colour=wants_colour(sys.stdout), width=terminal_width()), sys.stdout)
    stage.metrics["jobs"] = [
        {
            "name": job.name,
            "result": job.result,
            "seconds": job.seconds,
            "annotations": [one.shown() for one in job.annotations],
            "summary": job.summary,
            "steps": [{"name": s.title, "outcome": s.outcome, "seconds": s.seconds} for s in job.steps],
        }
        for job in results
    ]

    def show(report: Report) -> None:
        colour = "green" if report.outcome is Outcome.PASS else "red"
        counts = Counter(job.result for job in results)
        _print(f"{colour}: {', '.join(f'{count} {result}' for result, count in counts.items())}")

    return stage.close(reports, show=show)


@contextmanager
def _scratch(*, keep: bool) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)


def _print(text: str) -> None:
    write(f"{text}\n", sys.stdout)
