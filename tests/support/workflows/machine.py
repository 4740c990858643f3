"""What the jobs of one run share: repositories, event, caches, a fresh environment."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.settings import ROOT
from tests.support.repositories import IDENTITY
from tests.support.workflows.expression import Value

OWNER = "somebody"
TOOLKIT = f"{OWNER}/qnn-ci"
BRANCH = "main"
RUNS = itertools.count(1)


class StepFailed(Exception):
    """What a step fails of, and the outputs that it had set before."""

    def __init__(self, message: str, outputs: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.outputs = outputs or {}


@dataclass(frozen=True, slots=True)
class Repository:
    name: str
    root: Path
    """A clone of which `sha` is checked out."""
    sha: str


@dataclass(frozen=True, slots=True)
class Machine:
    folder: Path
    repositories: Mapping[str, Repository]
    event: Mapping[str, Value]
    github: Mapping[str, str]
    env: Mapping[str, str]
    """Of a fresh runner."""

    @property
    def own(self) -> Repository:
        """The repository that the event happened in."""
        return self.repositories[self.github["repository"]]

    def place_of(self, job: str) -> Path:
        return self.folder / "jobs" / re.sub(r"[^\w.-]", "_", job)

    def used(self, uses: str, by: Repository) -> tuple[Repository, str] | None:
        """The repository of `OWNER/NAME/PATH@REF` or `$/PATH`, and the path; None if it is not here."""
        if uses.startswith("$/"):
            return by, uses[2:]
        owner, name, path = (*uses.partition("@")[0].split("/", 2), "")[:3]
        repository = self.repositories.get(f"{owner}/{name}")
        return (repository, path) if repository else None


@contextmanager
def machine(folder: Path, root: Path, env: Mapping[str, str] | None = None) -> Iterator[Machine]:
    """What runs workflows of the repository at `root` for a pull request; `env` is set in every job.

    They see the working tree of the repository: changes that are not committed, but no new files. No cache
    is restored.
    """
    ours = snapshot(root, folder / "repository", f"{OWNER}/{root.name}")
    theirs = snapshot(ROOT, folder / "toolkit", TOOLKIT)
    environ = {**fresh_environment(os.environ, ROOT / ".nox"), **(env or {})}
    payload: dict[str, Value] = {
        "repository": {"default_branch": BRANCH},
        "pull_request": {"number": 1, "base": {"ref": BRANCH}},
    }
    github = {
        "event_name": "pull_request",
        "ref": "refs/pull/1/merge",
        "ref_name": "1/merge",
        "repository": ours.name,
        "run_id": str(next(RUNS)),
        "run_attempt": "1",
        "sha": ours.sha,
    }
    yield Machine(folder, {TOOLKIT: theirs, ours.name: ours}, payload, github, environ)
    shutil.rmtree(folder, ignore_errors=True)


def git(folder: Path, *arguments: str, changes: bytes | None = None) -> str:
    """What git printed; `changes` is its input."""
    command = ["git", *IDENTITY, *arguments]
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


def fresh_environment(environ: Mapping[str, str], hidden: Path) -> dict[str, str]:
    """Of the user's variables those for indexes, proxies, container engines and their caches. Programs under
    `hidden` are not on PATH."""
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
