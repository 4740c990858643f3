"""Stand-ins for others' actions, which do the same to files of this machine."""

from __future__ import annotations

import glob
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.support.workflows.machine import StepFailed, git

if TYPE_CHECKING:
    from tests.support.workflows.run import JobRun

Inputs: TypeAlias = Mapping[str, str]
Outputs: TypeAlias = Mapping[str, str]


def checkout(inputs: Inputs, job: JobRun) -> Outputs:
    repository = job.machine.repositories[inputs.get("repository") or job.machine.github["repository"]]
    assert inputs.get("ref", "") in ("", repository.sha)
    target = job.workspace / inputs.get("path", "")
    # Objects need not be copied; a part of a history ends where this file says.
    flags = ("--quiet", "--no-tags", "--no-checkout", "--shared")
    git(job.temp, "clone", *flags, str(repository.root), str(target))
    if inputs.get("fetch-depth", "1") == "1":
        (target / ".git" / "shallow").write_text(f"{repository.sha}\n", encoding="utf-8")
    git(target, "checkout", "--quiet", "--detach", repository.sha)
    git(target, "remote", "remove", "origin")
    return {}


def setup_python(inputs: Inputs, job: JobRun) -> Outputs:
    """This machine's Python, whatever the version asked for; jobs run one after the other."""
    home = job.machine.folder / "python"
    if not home.is_dir():
        command = [sys.executable, "-m", "virtualenv", "--quiet", "--symlink-app-data", str(home)]
        subprocess.run(command, check=True)
    job.paths.insert(0, str(home / "bin"))
    return {}


def no_cache(inputs: Inputs, job: JobRun) -> Outputs:
    """What is proved of a restored store: tests/unit/test_store_proof.py."""
    return {"cache-hit": "", "cache-matched-key": "", "cache-primary-key": inputs["key"]}


def upload_artifact(inputs: Inputs, job: JobRun) -> Outputs:
    """The files of each path, by their names below it; hidden ones are left out."""
    target, count = job.machine.folder / "artifacts" / inputs["name"], 0
    for pattern in inputs["path"].split():
        for name in glob.glob(str(job.workspace / pattern)):  # noqa: PTH207  (may be absolute)
            path = Path(name)
            for file in [path] if path.is_file() else path.rglob("*"):
                inside = file.relative_to(path.parent if path.is_file() else path)
                if file.is_file() and not any(part.startswith(".") for part in inside.parts):
                    (target / inside).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target / inside)  # without its mode, as on GitHub
                    count += 1
    if not count and inputs.get("if-no-files-found") == "error":
        raise StepFailed(f"no files match {inputs['path']}")
    job.lines.append(f"uploaded {count} files as {inputs['name']}")
    return {}


def download_artifact(inputs: Inputs, job: JobRun) -> Outputs:
    pattern = inputs.get("pattern", "*")
    found = [
        artifact
        for artifact in (job.machine.folder / "artifacts").glob("*")
        if fnmatchcase(artifact.name, pattern)
    ]
    into = job.workspace / inputs["path"]
    for artifact in found:
        # One alone comes without a folder of its name.
        shutil.copytree(artifact, into if len(found) == 1 else into / artifact.name, dirs_exist_ok=True)
    return {}


STAND_INS: Mapping[str, Callable[[Inputs, JobRun], Outputs]] = {
    "actions/checkout": checkout,
    "actions/setup-python": setup_python,
    "actions/cache/restore": no_cache,
    "actions/cache/save": no_cache,
    "actions/upload-artifact": upload_artifact,
    "actions/download-artifact": download_artifact,
}
