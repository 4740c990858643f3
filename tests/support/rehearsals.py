"""A repository with workflows of its own, and a rehearsal of them."""

from __future__ import annotations

import subprocess
import textwrap
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.github.rehearse.equivalents import Machine, Repository
from ci.github.rehearse.expression import Value
from ci.github.rehearse.model import read_workflow
from ci.github.rehearse.rehearsal import Choice, JobResult, Rehearsal, fresh_environment
from ci.github.rehearse.runner import run_workflow
from ci.github.rehearse.verb import make_event, snapshot_of

WORKFLOW = ".github/workflows/w.yml"
SHA = "0123456789abcdef0123456789abcdef01234567"
"""No third-party action is looked up, so any commit will do."""


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def repository(root: Path, files: Mapping[str, str]) -> Path:
    """A git repository at `root` with these files committed."""
    write(root, files)
    initial = ["init", "--quiet", "--initial-branch=main"]
    for command in (initial, ["add", "--all"], [*IDENTITY, "commit", "--quiet", "-m", "x"]):
        subprocess.run(["git", *command], cwd=root, check=True, capture_output=True)
    return root


IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@localhost"]


def rehearsal(
    root: Path,
    scratch: Path,
    *,
    slots: int = 2,
    env: Sequence[str] = (),
    git: bool = True,
    lines: list[str] | None = None,
) -> Rehearsal:
    """Of a repository; where no step needs git, of a mere directory, which is quicker."""
    snapshot, sha = root, SHA
    if git:
        snapshot = scratch / "repository"
        sha, _ = snapshot_of(root, snapshot, uncommitted=False)
    event = make_event(read_workflow(snapshot, WORKFLOW), None, "0" * 40, sha)
    machine = Machine(Repository("o/r", snapshot, sha), scratch / "cache", scratch / "artifacts")
    return Rehearsal(
        scratch=scratch / "jobs",
        machine=machine,
        event=event,
        env=fresh_environment({"PATH": "/usr/bin:/bin", "HOME": str(scratch)}, env, Path("/nowhere")),
        slots=threading.Semaphore(slots),
        print=([] if lines is None else lines).append,
        logs=scratch / "logs",
    )


def rehearse(
    tmp_path: Path,
    workflow: str,
    files: Mapping[str, str] | None = None,
    *,
    choice: Choice | None = None,
    inputs: Mapping[str, Value] | None = None,
    env: Sequence[str] = (),
    slots: int = 2,
    lines: list[str] | None = None,
) -> dict[str, JobResult]:
    """Run a workflow of which only `jobs:` and what follows is given; the results by the jobs' names."""
    text = "on: [push]\n" + textwrap.dedent(workflow)
    every = {**(files or {}), WORKFLOW: text}
    git = "checkout@" in text or "$/" in text
    root = tmp_path / "origin"
    (repository if git else write)(root, every)
    rehearsed = rehearsal(root, tmp_path / "scratch", env=env, slots=slots, git=git, lines=lines)
    parsed = read_workflow(rehearsed.machine.repository.root, WORKFLOW)
    results, _, _ = run_workflow(rehearsed, parsed, inputs or {}, choice or Choice())
    return {result.name: result for result in results}


def log_of(result: JobResult) -> str:
    assert result.log is not None
    return result.log.read_text(encoding="utf-8")
