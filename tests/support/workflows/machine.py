"""What the jobs of one run share: repositories, event, caches, artifacts, a fresh environment."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tests.support.workflows.expression import Value
from tests.support.workflows.files import Workflow

Result: TypeAlias = Literal["success", "failure", "skipped", "left out"]

OWNER = "somebody"
TOOLKIT = f"{OWNER}/qnn-ci"
BRANCH = "main"
MAIN = f"refs/heads/{BRANCH}"
NO_COMMIT = "0" * 40
"""What GitHub sends as the base of a push of which nothing was there before."""


@dataclass(frozen=True, slots=True)
class Repository:
    name: str
    root: Path
    """A clone of which `sha` is checked out."""
    sha: str


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    ref: str
    payload: Mapping[str, Value]


@dataclass(slots=True)
class StepResult:
    title: str
    outcome: Result = "skipped"
    conclusion: Result = "skipped"
    outputs: Mapping[str, Value] = field(default_factory=dict)


@dataclass(slots=True)
class JobResult:
    """One job, or one row of its matrix."""

    name: str
    result: Result
    steps: list[StepResult] = field(default_factory=list)
    annotations: list[str] = field(default_factory=list)
    summary: str = ""
    log: Path | None = None
    failure: str = ""
    """The first step that failed, and its error."""
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    scratch: Path
    """For jobs and artifacts; removed at the end."""
    logs: Path
    cache: Path
    repository: Repository
    """The one that the event happened in."""
    toolkit: Repository
    """What stands in for the published one."""
    event: Event
    env: Mapping[str, str]
    """The environment of a fresh runner."""
    variables: Mapping[str, str]
    """The variables of the repository, `vars` in a workflow."""
    api: str
    """The address of what stands in for GitHub's API."""
    rows: tuple[str, ...]
    """Of a matrix only the jobs of these names run; empty for all."""
    lines: list[str] = field(default_factory=list)
    """What would be seen outside the run: attestations and pull requests."""
    run_id: int = field(default_factory=itertools.count(1).__next__)

    @property
    def artifacts(self) -> Path:
        return self.scratch / "artifacts"

    def named(self, name: str) -> Repository | None:
        return {self.toolkit.name: self.toolkit, self.repository.name: self.repository}.get(name)

    def used(self, uses: str, by: Repository) -> tuple[Repository, str] | None:
        """The repository of `OWNER/NAME/PATH@REF` or `$/PATH`, and the path; None if it is not here."""
        if uses.startswith("$/"):
            return by, uses[2:]
        owner, _, rest = uses.partition("@")[0].partition("/")
        name, _, path = rest.partition("/")
        repository = self.named(f"{owner}/{name}")
        return (repository, path) if repository and path else None


def git(folder: Path, *arguments: str, changes: bytes | None = None) -> str:
    """What git printed; `changes` is its input."""
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    done = subprocess.run(command, cwd=folder, input=changes, capture_output=True, check=False)
    if done.returncode:
        raise OSError(f"git {' '.join(arguments)} in {folder}: {done.stderr.decode()}")
    return done.stdout.decode()


def snapshot(root: Path, into: Path, name: str) -> Repository:
    """A clone with the changes of tracked files that are not committed yet, in a commit of their own."""
    # Jobs fetch from it and never write there, so the history need not be copied.
    git(root, "clone", "--quiet", "--shared", str(root), str(into))
    if changes := git(root, "diff", "--binary", "--ignore-submodules=dirty", "HEAD"):
        git(into, "apply", "--index", changes=changes.encode())
        git(into, "commit", "--quiet", "--no-verify", "--message", "What is not committed yet")
    return Repository(name, into, git(into, "rev-parse", "HEAD").strip())


def make_event(workflow: Workflow, name: str, repository: Repository, ref: str, base: str) -> Event:
    """The event as GitHub sends it, with the fields that our workflows read."""
    if name not in workflow.events:
        raise LookupError(f"{workflow.path} does not run on {name}: expected {', '.join(workflow.events)}")
    payload: dict[str, Value] = {"repository": {"default_branch": BRANCH}}
    if name == "pull_request":
        payload["pull_request"] = {"number": 1, "base": {"ref": BRANCH, "sha": base}}
        return Event(name, "refs/pull/1/merge", payload)
    if name == "push":
        payload |= {"before": base, "after": repository.sha, "ref": ref}
        return Event(name, ref, payload)
    return Event(name, MAIN, payload)


def github_context(machine: Machine, workflow: Workflow) -> dict[str, Value]:
    event = machine.event
    return {
        "actor": OWNER,
        "api_url": machine.api,
        "event": event.payload,
        "event_name": event.name,
        "ref": event.ref,
        "ref_name": event.ref.split("/", 2)[2],
        "ref_type": "tag" if event.ref.startswith("refs/tags/") else "branch",
        "repository": machine.repository.name,
        "run_attempt": "1",
        "run_id": str(machine.run_id),
        "server_url": "https://github.com",
        "sha": machine.repository.sha,
        "token": "",
        "workflow": workflow.name,
    }


def fresh_environment(environ: Mapping[str, str], hidden: Path) -> dict[str, str]:
    """The environment of a hosted runner.

    Of the user's variables only those for indexes, proxies, container engines and their caches are kept.
    Programs under `hidden` are not on PATH.
    """
    kept = ("PIP_", "UV_", "SSL_", "LC_", "REQUESTS_", "DOCKER_")
    named = ("HOME", "LANG", "USER", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "QNN_CI_MIRROR")
    env = {
        name: value
        for name, value in environ.items()
        if name.upper().startswith(kept) or name.upper() in named
    }
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache")
    env.setdefault("PIP_CACHE_DIR", str(home / "pip"))
    env.setdefault("UV_CACHE_DIR", str(home / "uv"))
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    env["PATH"] = os.pathsep.join(entry for entry in path if not entry.startswith(str(hidden)))
    return env
