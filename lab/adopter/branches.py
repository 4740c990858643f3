"""The branches of manifests/adopter: each is gated as a pull request, and what is seen compared with what is
accepted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from lab.adopter.runner import Event, Hub, JobResult, WorkflowRunner
from provisioning.base.commands import session
from provisioning.base.documents import Model, load
from provisioning.base.errors import UnknownName
from provisioning.base.files import replace_text
from provisioning.base.findings import Severity
from provisioning.base.settings import MANIFESTS, ROOT, Selection
from provisioning.base.stage_run import StageRun

FOLDER = MANIFESTS / "adopter"
ACCEPTED = FOLDER / "accepted.json"
_ANNOTATION = re.compile(r"::(error|warning) (.*?)::")
_DIGEST = re.compile(r"-[0-9a-f]{8}(?=-|$)")


class Branch(Model):
    event: Literal["pull_request", "merge_group"]
    fork: bool = False
    file: str = ""
    old: str = ""
    new: str = ""
    timeout: int = 0
    """Seconds for a model; 0 for the usual limit."""


class AdopterBranches(Model):
    branch: dict[str, Branch]


class Seen(Model):
    """What GitHub shows of a run, without what differs in each."""

    jobs: dict[str, str]
    annotations: tuple[str, ...]
    """Level, file, line and title."""
    artifacts: tuple[str, ...]


def check_branches(names: Sequence[str], selection: Selection, *, accept: bool) -> int:
    branches = load(FOLDER / "branches.toml", AdopterBranches).branch
    for name in names:
        if name not in branches:
            raise UnknownName(f"there is no branch {name!r}", name, branches)
    accepted = TypeAdapter(dict[str, Seen]).validate_json(ACCEPTED.read_bytes()) if ACCEPTED.is_file() else {}
    stage = StageRun("adopter", selection.profile, "")
    with stage.reported(selection.reports, "adopter-differs"):
        for name in names or branches:
            seen = gated(name, branches[name], selection.store)
            print(f"{name}: {seen.jobs.get('qnn / verdict', 'no verdict')}", flush=True)
            if accept:
                accepted[name] = seen
            elif seen != accepted.get(name):
                message = f"seen {seen.model_dump_json()}, accepted {accepted.get(name)!r}"
                stage.add(
                    "adopter-differs", Severity.ERROR, name, message, session("lab", "adopter", "--accept")
                )
    if accept:
        rows = {name: accepted[name].model_dump(mode="json") for name in branches if name in accepted}
        replace_text(ACCEPTED, json.dumps(rows, indent=2) + "\n")
    return stage.close(selection.reports)


def gated(name: str, branch: Branch, store: Path) -> Seen:
    """Run the workflow on this branch."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-adopter-") as folder:
        repository = Path(folder, "models")
        shutil.copytree(FOLDER / "repository", repository)
        workflow = repository / ".github/workflows/qnn.yml"
        workflow.parent.mkdir(parents=True)
        text = (MANIFESTS / "workflow.yml").read_text(encoding="utf-8")
        if branch.timeout:
            text += f"      timeout: '{branch.timeout}'\n"
        workflow.write_text(text, encoding="utf-8")
        _git(repository, "init", "-q", "-b", "main")
        _commit(repository, "models")
        if branch.file:
            file = repository / branch.file
            before = file.read_text(encoding="utf-8")
            assert before.count(branch.old) == 1, f"{branch.file} has {branch.old!r} other than once"
            file.write_text(before.replace(branch.old, branch.new), encoding="utf-8")
        commit = _commit(repository, name)
        hub = Hub(Path(folder, "hub"))
        runner = WorkflowRunner(repository, ROOT, hub, variables={"QNN_CI_STORE": str(store.absolute())})
        return _seen(runner.run(workflow, _event(branch, commit)), hub)


def _event(branch: Branch, commit: str) -> Event:
    if branch.event == "merge_group":
        return Event("merge_group", "refs/heads/gh-readonly-queue/main/pr-5", commit, {"merge_group": {}})
    head = {"repo": {"fork": branch.fork}}
    return Event("pull_request", "refs/pull/5/merge", commit, {"pull_request": {"number": 5, "head": head}})


def _seen(results: Mapping[str, JobResult], hub: Hub) -> Seen:
    lines = [line for row in results.values() for line in row.annotations]
    return Seen(
        jobs={name: row.conclusion for name, row in results.items()},
        annotations=tuple(
            sorted({f"{match[1]} {match[2]}" for line in lines if (match := _ANNOTATION.match(line))})
        ),
        artifacts=tuple(sorted(_DIGEST.sub("", name) for name in hub.artifacts)),
    )


def _commit(repository: Path, message: str) -> str:
    _git(repository, "add", "-A")
    _git(repository, "commit", "-qm", message, "--allow-empty")
    return _git(repository, "rev-parse", "HEAD").strip()


def _git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=adopter", "-c", "user.email=adopter@example"]
    command = ["git", "-C", str(repository), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
