"""Stand-ins for third-party actions: they do the same to files of this machine."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote, unquote

from provisioning.base.files import hash_file
from tests.support.workflows.commands import StepFailed
from tests.support.workflows.expression import Unknown
from tests.support.workflows.files import Input
from tests.support.workflows.machine import BRANCH, MAIN, Machine, git


@dataclass(frozen=True, slots=True)
class JobSpace:
    """One job's own part of the machine."""

    machine: Machine
    workspace: Path
    temp: Path
    path_entries: list[str]
    """Folders of programs, for later steps."""
    log: Callable[[str], None]
    show: Callable[[str], None]
    """Of effects that on GitHub are seen outside the run."""

    def path(self, text: str) -> Path:
        return self.workspace / text


@dataclass(frozen=True, slots=True)
class StandIn:
    act: Callable[[Mapping[str, str], JobSpace], Mapping[str, str]]
    names: str
    """Of inputs that are implemented, or have no meaning here; required ones end in `!`."""

    @property
    def inputs(self) -> dict[str, Input]:
        return {name.rstrip("!"): Input(required=name.endswith("!")) for name in self.names.split()}


def stand_in(uses: str) -> StandIn:
    name, _, version = uses.partition("@")
    if name not in STAND_INS or not version:
        raise Unknown(f"{uses}: expected one of {', '.join(STAND_INS)}, at a version")
    return STAND_INS[name]


def checkout(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    machine = place.machine
    repository = machine.named(inputs["repository"] or machine.repository.name)
    if repository is None or inputs["ref"] not in ("", BRANCH, repository.sha):
        raise Unknown(f"checkout of {inputs['repository']} at {inputs['ref']}: it is not on this machine")
    target = place.path(inputs["path"])
    if target.exists() and any(target.iterdir()):
        raise StepFailed(f"checkout into {inputs['path'] or 'the workspace'}: expected an empty directory")
    shallow = [] if inputs["fetch-depth"] == "0" else ["--depth", inputs["fetch-depth"] or "1"]
    git(place.temp, "clone", "--quiet", *shallow, "--no-tags", repository.root.as_uri(), str(target))
    git(target, "checkout", "--quiet", "--detach", repository.sha)
    if inputs["submodules"] == "recursive":
        git(
            target,
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "--quiet",
            "update",
            "--init",
            "--recursive",
        )
    git(target, "remote", "remove", "origin")
    return {}


def setup_python(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    """This machine's Python, whatever the version asked for."""
    # An environment for each job: two jobs that install into one at the same time break it.
    home = place.temp / "python"
    subprocess.run(
        [sys.executable, "-m", "virtualenv", "--quiet", "--symlink-app-data", str(home)], check=True
    )
    place.path_entries.insert(0, str(home / "bin"))
    return {}


def cache_restore(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    key = inputs["key"]
    for ref in (place.machine.event.ref, MAIN):
        newest_first = sorted(_caches(ref, inputs, place).glob("*"), key=os.path.getmtime, reverse=True)
        files = {unquote(file.name): file for file in newest_first}
        prefixes = (key, *_lines(inputs["restore-keys"]))
        fitting = [file for prefix in prefixes for file in files if file.startswith(prefix)]
        found = key if key in files else next(iter(fitting), None)
        if found:
            target = place.path(inputs["path"])
            target.mkdir(parents=True, exist_ok=True)
            subprocess.run(["tar", "-xpf", files[found]], cwd=target, check=True)
            place.log(f"restored the cache {found}")
            return {"cache-hit": "true" if found == key else "false", "cache-matched-key": found}
    place.log(f"no cache has the key {key}")
    return {"cache-hit": "", "cache-matched-key": ""}


def cache_save(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    key, folder = inputs["key"], place.path(inputs["path"])
    file = _caches(place.machine.event.ref, inputs, place) / quote(key, safe="")
    if file.exists() or not folder.is_dir():
        place.log(f"there is {'a cache already' if file.exists() else 'no folder'}: {key} is not saved")
        return {}
    file.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-cf", file, "."], cwd=folder, check=True)
    place.log(f"saved the cache {key}")
    return {}


def _caches(ref: str, inputs: Mapping[str, str], place: JobSpace) -> Path:
    """Where a ref's caches of a path are. Other jobs have other folders here, but not on GitHub."""
    path = str(place.path(inputs["path"]))
    path = path.replace(str(place.workspace), "{workspace}").replace(str(place.temp), "{temp}")
    return place.machine.cache / quote(ref, safe="") / hashlib.sha256(path.encode()).hexdigest()


def upload_artifact(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    name = inputs["name"] or "artifact"
    files = [file for file in _matching(inputs["path"], place) if not _hidden(file, place)]
    if not files:
        message = f"no files match {' '.join(_lines(inputs['path']))}"
        if inputs["if-no-files-found"] == "error":
            raise StepFailed(message)
        place.log(message)
        return {}
    root = Path(os.path.commonpath(_search_roots(inputs["path"], place)))
    names = [file.relative_to(root) for file in files]
    target = place.machine.artifacts / name
    try:
        target.mkdir(parents=True)
    except FileExistsError as error:
        raise StepFailed(f"there is an artifact {name!r} already: each needs a name of its own") from error
    for file, inside in zip(files, names, strict=True):
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / inside)  # without its mode, as on GitHub
    place.log(f"uploaded {len(files)} files as {name}")
    return {"artifact-id": _id(target)}


def download_artifact(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    artifacts, into = place.machine.artifacts, place.path(inputs["path"])
    if name := inputs["name"]:
        if not (artifacts / name).is_dir():
            raise StepFailed(f"there is no artifact {name!r}")
        shutil.copytree(artifacts / name, into, dirs_exist_ok=True)
        return {}
    if wanted := inputs["artifact-ids"]:
        found = [artifact for artifact in artifacts.glob("*") if _id(artifact) == wanted]
        if not found:
            raise StepFailed(f"there is no artifact of the id {wanted!r}")
    else:
        found = [path for path in artifacts.glob("*") if fnmatchcase(path.name, inputs["pattern"] or "*")]
    for artifact in found:
        # One alone comes without a folder of its name.
        shutil.copytree(artifact, into if len(found) == 1 else into / artifact.name, dirs_exist_ok=True)
    return {}


def _id(artifact: Path) -> str:
    """Another one of the same name has another."""
    return str(artifact.stat().st_ino)


def attest(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    kinds = ("subject-path", "subject-checksums", "subject-digest")
    if sum(bool(inputs[kind]) for kind in kinds) != 1:
        raise StepFailed(f"expected exactly one of {', '.join(kinds)}")
    if bool(inputs["predicate-type"]) != bool(inputs["predicate-path"]):
        raise StepFailed("expected both predicate-type and predicate-path, or none")
    subjects = _subjects(inputs, place)
    if not subjects:
        raise StepFailed("there is no subject to attest")
    statement: dict[str, object] = {
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects],
        "predicateType": inputs["predicate-type"],
    }
    if predicate := inputs["sbom-path"] or inputs["predicate-path"]:
        statement["predicate"] = json.loads(place.path(predicate).read_text(encoding="utf-8"))
    bundle = place.temp / "attestation.json"
    bundle.write_text(json.dumps(statement, indent=2), encoding="utf-8")
    for name, _ in subjects:
        place.show(f"would attest {name}")
    return {"bundle-path": str(bundle)}


def _subjects(inputs: Mapping[str, str], place: JobSpace) -> list[tuple[str, str]]:
    """Names with digests."""
    if digest := inputs["subject-digest"]:
        return [(inputs["subject-name"], digest.removeprefix("sha256:"))]
    if checksums := inputs["subject-checksums"]:
        lines = place.path(checksums).read_text(encoding="utf-8").splitlines()
        return [(name, digest) for digest, _, name in (line.partition("  ") for line in lines)]
    return [(file.name, hash_file(file)) for file in _matching(inputs["subject-path"], place)]


def create_pull_request(inputs: Mapping[str, str], place: JobSpace) -> Mapping[str, str]:
    added = _lines(inputs["add-paths"])
    changed = git(place.workspace, "status", "--porcelain", "--", *added).splitlines()
    if not changed:
        place.show("nothing has changed, so no pull request would be opened")
        return {}
    branch = inputs["branch"]
    place.show(f"would open the pull request {inputs['title']!r} from the branch {branch}, with")
    for line in changed:
        place.show(f"  {line}")
    place.log(f"commit-message: {inputs['commit-message']}")
    body = inputs["body-path"]
    place.log(f"body: {place.path(body).read_text(encoding='utf-8') if body else inputs['body']}")
    place.log(git(place.workspace, "diff", "--", *added))
    return {}


STAND_INS = {
    "actions/checkout": StandIn(checkout, "repository ref path fetch-depth persist-credentials submodules"),
    "actions/setup-python": StandIn(setup_python, "python-version"),
    "actions/cache/restore": StandIn(cache_restore, "path! key! restore-keys"),
    "actions/cache/save": StandIn(cache_save, "path! key!"),
    "actions/upload-artifact": StandIn(upload_artifact, "name path! if-no-files-found retention-days"),
    "actions/download-artifact": StandIn(download_artifact, "name path pattern artifact-ids"),
    "actions/attest": StandIn(
        attest,
        "subject-path subject-checksums subject-digest subject-name sbom-path predicate-type predicate-path"
        " push-to-registry",
    ),
    "peter-evans/create-pull-request": StandIn(
        create_pull_request, "add-paths! branch title body body-path commit-message delete-branch"
    ),
}


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _matching(patterns: str, place: JobSpace) -> list[Path]:
    """The files that the globs match, one glob a line. A directory means all its files."""
    files: set[Path] = set()
    for pattern in _lines(patterns):
        for name in glob.glob(str(place.path(pattern)), recursive=True):  # noqa: PTH207  (may be absolute)
            path = Path(name)
            files |= {path} if path.is_file() else {file for file in path.rglob("*") if file.is_file()}
    return sorted(files)


def _search_roots(patterns: str, place: JobSpace) -> list[Path]:
    """The directory before the first wildcard of each pattern. Artifacts keep the paths below."""
    roots: list[Path] = []
    for line in _lines(patterns):
        root = Path(*takewhile(lambda part: not set(part) & set("*?["), place.path(line).parts))
        roots.append(root.parent if root.is_file() else root)
    return roots


def _hidden(file: Path, place: JobSpace) -> bool:
    inside = file.relative_to(place.workspace) if file.is_relative_to(place.workspace) else Path(file.name)
    return any(part.startswith(".") for part in inside.parts)
