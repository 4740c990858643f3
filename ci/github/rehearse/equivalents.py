"""Local equivalents of third-party actions. They do the same to files of this machine and do nothing else."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from provisioning.base.commands import captured
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import hash_file


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that workflows, actions and files come from."""

    name: str
    root: Path
    """A local clone."""
    sha: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The things that jobs share on GitHub: the repository, caches and artifacts."""

    repository: Repository
    """The rehearsed one."""
    cache: Path
    artifacts: Path
    toolkit: Repository | None = None
    """Set if another repository is rehearsed: this checkout, used instead of the published toolkit."""
    called: set[str] = field(default_factory=set)
    """Names by which that repository calls the toolkit."""
    lock: Lock = field(default_factory=Lock)

    def named(self, name: str) -> Repository | None:
        if name == self.repository.name:
            return self.repository
        return replace(self.toolkit, name=name) if self.toolkit and name in self.called else None

    def used(self, uses: str) -> tuple[Repository, str] | None:
        """The repository of `OWNER/NAME/PATH@REF` and the path in it; None if it is not on this machine."""
        place, _, _ = uses.partition("@")
        owner, _, rest = place.partition("/")
        repository_name, _, path = rest.partition("/")
        name = f"{owner}/{repository_name}"
        if not path:
            return None
        if self.toolkit is not None and (self.toolkit.root / path).exists():
            self.called.add(name)
        repository = self.named(name)
        return (repository, path) if repository else None


@dataclass(frozen=True, slots=True)
class JobSpace:
    """One job's own part of the machine."""

    machine: Machine
    workspace: Path
    temp: Path
    ref: str
    default_ref: str
    log: Callable[[str], None]
    print: Callable[[str], None]
    """Prints for the user: effects that on GitHub are visible outside the run."""

    def path(self, text: str) -> Path:
        return self.workspace / Path(text).expanduser()

    def portable(self, text: str) -> str:
        """The text with this job's folders replaced by names, because on GitHub every job has the
        same paths."""
        return text.replace(str(self.workspace), "{workspace}").replace(str(self.temp), "{temp}")


@dataclass(frozen=True, slots=True)
class Done:
    outputs: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Equivalent:
    what: str
    """In a few words, for the log."""
    inputs: frozenset[str]
    """Inputs that are implemented, or have no meaning here. Any other is an error."""
    act: Callable[[Mapping[str, str], JobSpace], Done]
    required: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()


def equivalent(uses: str) -> Equivalent:
    name, _, version = uses.partition("@")
    if not version:
        raise UsageError(f"{uses} names no version", remedy="pin it by commit, as in manifests/actions.toml")
    if name not in EQUIVALENTS:
        raise UsageError(
            f"{name} has no local equivalent: expected one of {', '.join(EQUIVALENTS)}",
            remedy="add it to ci/github/rehearse/equivalents.py",
        )
    return EQUIVALENTS[name]


def checkout(inputs: Mapping[str, str], place: JobSpace) -> Done:
    machine = place.machine
    wanted = inputs.get("repository") or machine.repository.name
    repository = machine.named(wanted)
    if repository is None:
        known = ", ".join([machine.repository.name, *sorted(machine.called)])
        raise UsageError(
            f"checkout of {wanted}: expected {known}",
            remedy="rehearse the job that needs no other repository",
        )
    target = place.path(inputs.get("path", ""))
    depth = inputs.get("fetch-depth", "1")
    shallow = [] if depth == "0" else ["--depth", depth]
    if target.exists() and any(target.iterdir()):
        raise CheckFailed(f"checkout into {place.portable(str(target))}: expected an empty directory")
    _git("clone", "--quiet", *shallow, "--no-tags", repository.root.as_uri(), str(target))
    ref = inputs.get("ref") or repository.sha
    if ref == place.default_ref.removeprefix("refs/heads/"):
        ref = repository.sha  # the rehearsed commit is what the default branch has
    done = _git("-C", str(target), "checkout", "--quiet", "--detach", ref, check=False)
    if done.returncode:
        _git("-C", str(target), "fetch", "--quiet", *shallow, "origin", ref)
        _git("-C", str(target), "checkout", "--quiet", "--detach", "FETCH_HEAD")
    if (submodules := inputs.get("submodules", "false")) not in ("", "false"):
        origin = _git("-C", str(repository.root), "config", "remote.origin.url", check=False).stdout.strip()
        _take_submodules(target, Path(origin or repository.root), recursive=submodules == "recursive")
    _git("-C", str(target), "remote", "remove", "origin")
    commit = _git("-C", str(target), "rev-parse", "HEAD").stdout.strip()
    return Done({"commit": commit, "ref": ref})


def _take_submodules(target: Path, source: Path, *, recursive: bool) -> None:
    """Take submodules from the user's own clone where it has them: their commits may be nowhere else."""
    git = ("-C", str(target), "-c", "protocol.file.allow=always")
    _git(*git, "submodule", "--quiet", "init")
    listed = _git(*git, "config", "--null", "--file", ".gitmodules", "--get-regexp", r"\.path$", check=False)
    paths = dict(entry.split("\n", 1) for entry in listed.stdout.split("\0") if entry)
    for key, path in paths.items():
        if (source / path / ".git").exists():
            _git(*git, "config", f"{key.removesuffix('.path')}.url", (source / path).as_uri())
    _git(*git, "submodule", "--quiet", "update")
    for path in paths.values() if recursive else ():
        if (target / path / ".git").exists():
            _take_submodules(target / path, source / path, recursive=True)


def setup_python(inputs: Mapping[str, str], place: JobSpace) -> Done:
    running = ".".join(map(str, sys.version_info[:3]))
    wanted = inputs.get("python-version", "")
    if wanted and not f"{running}.".startswith(f"{wanted}."):
        place.log(f"wanted is Python {wanted}; this machine's {running} stands in")
    # One for each job: two jobs that install into one at the same time break it.
    home = place.temp / "python"
    if not (home / "bin" / "python").exists():
        maker = "virtualenv" if importlib.util.find_spec("virtualenv") else "venv"
        command = [sys.executable, "-m", maker, str(home)]
        done = captured(command)
        if done.returncode:
            raise EnvironmentLacking(
                f"{maker} cannot make an environment: {(done.stdout + done.stderr).strip()}",
                remedy="python -m pip install virtualenv",
            )
    return Done(
        {"python-version": running, "python-path": str(home / "bin" / "python")}, (str(home / "bin"),)
    )


def cache_restore(inputs: Mapping[str, str], place: JobSpace) -> Done:
    paths = _lines(inputs["path"])
    version = _cache_version(paths, place)
    entries = [e for e in _cache_entries(place) if e["version"] == version]
    key = inputs["key"]
    cache = _cached(entries, (place.ref, place.default_ref), key, _lines(inputs.get("restore-keys", "")))
    if cache is None:
        if inputs.get("fail-on-cache-miss") == "true":
            raise CheckFailed(f"no cache has the key {key}")
        place.log(f"no cache has the key {key}")
        return Done({"cache-primary-key": key})
    if inputs.get("lookup-only") != "true":
        with tarfile.open(str(cache["file"])) as archive:
            for number, path in enumerate(paths):
                _unpack(archive, number, place.path(path))
    place.log(f"restored the cache {cache['key']}")
    hit = "true" if cache["key"] == key else "false"
    return Done({"cache-hit": hit, "cache-primary-key": key, "cache-matched-key": str(cache["key"])})


def cache_save(inputs: Mapping[str, str], place: JobSpace) -> Done:
    paths = _lines(inputs["path"])
    version = _cache_version(paths, place)
    key = inputs["key"]
    with place.machine.lock:
        mine = [e for e in _cache_entries(place) if (e["version"], e["ref"]) == (version, place.ref)]
        if any(e["key"] == key for e in mine):
            place.log(f"there is a cache {key} already; it stays")
            return Done()
        there = [(number, place.path(p)) for number, p in enumerate(paths) if place.path(p).exists()]
        if not there:
            place.log("warning: none of the paths to cache exists")
            return Done()
        place.machine.cache.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(f"{key}\n{version}\n{place.ref}".encode()).hexdigest()
        file = place.machine.cache / f"{name}.tar"
        with tarfile.open(file, "w") as archive:
            for number, path in there:
                archive.add(path, str(number))
        entry = {
            "key": key,
            "version": version,
            "ref": place.ref,
            "file": str(file),
            "when": str(time.time()),
        }
        (place.machine.cache / f"{name}.json").write_text(json.dumps(entry), encoding="utf-8")
    place.log(f"saved the cache {key}")
    return Done()


def upload_artifact(inputs: Mapping[str, str], place: JobSpace) -> Done:
    name = inputs.get("name", "artifact")
    if not name or set(name) & set('":<>|*?\r\n\\/'):
        raise CheckFailed(f"the artifact's name {name!r} has characters that GitHub refuses")
    files = _matching(inputs["path"], place, hidden=inputs.get("include-hidden-files") == "true")
    if not files:
        message = f"no files match {' '.join(_lines(inputs['path']))}"
        if inputs.get("if-no-files-found", "warn") == "error":
            raise CheckFailed(message)
        place.log(message)
        return Done()
    target = place.machine.artifacts / name
    with place.machine.lock:
        if target.exists():
            if inputs.get("overwrite") != "true":
                raise CheckFailed(f"there is an artifact {name!r} already: each needs a name of its own")
            shutil.rmtree(target)
        root = Path(os.path.commonpath(_search_roots(inputs["path"], place)))
        digest = hashlib.sha256()
        for file in files:
            duplicate = target / file.relative_to(root)
            duplicate.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, duplicate)  # without its mode, as on GitHub
            digest.update(duplicate.read_bytes())
    place.log(f"uploaded {len(files)} files as {name}")
    return Done({"artifact-id": name, "artifact-digest": digest.hexdigest()})


def download_artifact(inputs: Mapping[str, str], place: JobSpace) -> Done:
    import fnmatch

    artifacts = place.machine.artifacts
    into = place.path(inputs.get("path", ""))
    if name := inputs.get("name", ""):
        if not (artifacts / name).is_dir():
            raise CheckFailed(f"there is no artifact {name!r}")
        shutil.copytree(artifacts / name, into, dirs_exist_ok=True)
        return Done({"download-path": str(into)})
    pattern = inputs.get("pattern") or "*"
    names = sorted(path.name for path in artifacts.glob("*") if fnmatch.fnmatchcase(path.name, pattern))
    for one in names:
        to = into if inputs.get("merge-multiple") == "true" else into / one
        shutil.copytree(artifacts / one, to, dirs_exist_ok=True)
    place.log(f"downloaded {len(names)} artifacts")
    return Done({"download-path": str(into)})


def attest(inputs: Mapping[str, str], place: JobSpace) -> Done:
    kinds = ("subject-path", "subject-checksums", "subject-digest")
    if sum(bool(inputs.get(kind)) for kind in kinds) != 1:
        raise CheckFailed(f"expected exactly one of {', '.join(kinds)}")
    subjects = _subjects(inputs, place)
    if not subjects:
        raise CheckFailed("there is no subject to attest")
    predicate = inputs.get("sbom-path") or inputs.get("predicate-path")
    if bool(inputs.get("predicate-type")) != bool(inputs.get("predicate-path")):
        raise CheckFailed("expected both predicate-type and predicate-path, or none")
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects],
        "predicateType": inputs.get("predicate-type") or "rehearsed, therefore unsigned",
    }
    if predicate:
        statement["predicate"] = json.loads(place.path(predicate).read_text(encoding="utf-8"))
    bundle = place.temp / f"attestation-{len(list(place.temp.glob('attestation-*')))}.json"
    bundle.write_text(json.dumps(statement, indent=2), encoding="utf-8")
    for name, _ in subjects:
        place.print(f"would attest {name}")
    return Done({"bundle-path": str(bundle)})


def _subjects(inputs: Mapping[str, str], place: JobSpace) -> list[tuple[str, str]]:
    """Names with digests."""
    if digest := inputs.get("subject-digest"):
        return [(inputs["subject-name"], digest.removeprefix("sha256:"))]
    if checksums := inputs.get("subject-checksums"):
        lines = place.path(checksums).read_text(encoding="utf-8").splitlines()
        return [(name, digest) for digest, _, name in (line.partition("  ") for line in lines)]
    return [(file.name, hash_file(file)) for file in _matching(inputs["subject-path"], place, hidden=True)]


def create_pull_request(inputs: Mapping[str, str], place: JobSpace) -> Done:
    added = _lines(inputs.get("add-paths", "")) or ["."]
    git = ("-C", str(place.workspace))
    changed = _git(*git, "status", "--porcelain", "--", *added).stdout.splitlines()
    if not changed:
        place.print("nothing has changed, so no pull request would be opened")
        return Done({"pull-request-operation": "none"})
    branch = inputs.get("branch", "")
    place.print(f"would open the pull request {inputs.get('title', '')!r} from the branch {branch}, with")
    for line in changed:
        place.print(f"  {line}")
    for name in ("commit-message", "body"):
        place.log(f"{name}: {inputs.get(name, '')}")
    if body := inputs.get("body-path"):
        place.log(f"body: {place.path(body).read_text(encoding='utf-8')}")
    place.log(_git(*git, "diff", "--", *added).stdout)
    return Done({"pull-request-operation": "created", "pull-request-number": "0"})


_CACHE = frozenset({"path", "key"})

EQUIVALENTS: dict[str, Equivalent] = {
    "actions/checkout": Equivalent(
        "a clone of the rehearsed commit",
        frozenset({"repository", "ref", "path", "fetch-depth", "persist-credentials", "submodules"}),
        checkout,
        outputs=frozenset({"commit", "ref"}),
    ),
    "actions/setup-python": Equivalent(
        "this machine's Python",
        frozenset({"python-version"}),
        setup_python,
        outputs=frozenset({"python-version", "python-path"}),
    ),
    "actions/cache/restore": Equivalent(
        "a copy from the rehearsal's caches",
        _CACHE | {"restore-keys", "lookup-only", "fail-on-cache-miss"},
        cache_restore,
        required=_CACHE,
        outputs=frozenset({"cache-hit", "cache-primary-key", "cache-matched-key"}),
    ),
    "actions/cache/save": Equivalent("a copy to the rehearsal's caches", _CACHE, cache_save, required=_CACHE),
    "actions/upload-artifact": Equivalent(
        "a copy to the rehearsal's artifacts",
        frozenset(
            {"name", "path", "if-no-files-found", "retention-days", "compression-level", "overwrite"}
            | {"include-hidden-files"}
        ),
        upload_artifact,
        required=frozenset({"path"}),
        outputs=frozenset({"artifact-id", "artifact-digest"}),
    ),
    "actions/download-artifact": Equivalent(
        "a copy from the rehearsal's artifacts",
        frozenset({"name", "path", "pattern", "merge-multiple"}),
        download_artifact,
        outputs=frozenset({"download-path"}),
    ),
    "actions/attest": Equivalent(
        "hashes and an unsigned statement",
        frozenset({"subject-path", "subject-checksums", "subject-digest", "subject-name", "sbom-path"})
        | {"predicate-type", "predicate-path", "push-to-registry"},
        attest,
        outputs=frozenset({"bundle-path"}),
    ),
    "peter-evans/create-pull-request": Equivalent(
        "what would be in it",
        frozenset({"add-paths", "branch", "title", "body", "commit-message", "delete-branch", "token"})
        | {"body-path"},
        create_pull_request,
        outputs=frozenset({"pull-request-operation", "pull-request-number"}),
    ),
}


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _matching(patterns: str, place: JobSpace, *, hidden: bool) -> list[Path]:
    """The files that the globs match, one glob a line. A directory means all its files; `!` excludes."""
    chosen: dict[Path, None] = {}
    for line in _lines(patterns):
        matched = _files(line.removeprefix("!"), place)
        for file in matched:
            if line.startswith("!"):
                chosen.pop(file, None)
            elif hidden or not _hidden(file, place):
                chosen[file] = None
    return sorted(chosen)


def _search_roots(patterns: str, place: JobSpace) -> list[Path]:
    """The directory before the first wildcard of each pattern. Artifacts keep the paths below."""
    roots: list[Path] = []
    for line in _lines(patterns):
        if not line.startswith("!"):
            plain = itertools.takewhile(lambda part: not set(part) & set("*?["), place.path(line).parts)
            root = Path(*plain)
            roots.append(root.parent if root.is_file() else root)
    return roots


def _files(pattern: str, place: JobSpace) -> list[Path]:
    import glob

    files: list[Path] = []
    for name in glob.glob(str(place.path(pattern)), recursive=True):  # noqa: PTH207  (may be absolute)
        path = Path(name)
        files += [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return files


def _hidden(file: Path, place: JobSpace) -> bool:
    inside = file.relative_to(place.workspace) if file.is_relative_to(place.workspace) else Path(file.name)
    return any(part.startswith(".") for part in inside.parts)


def _cache_version(paths: list[str], place: JobSpace) -> str:
    return hashlib.sha256("\n".join(map(place.portable, paths)).encode()).hexdigest()


def _cache_entries(place: JobSpace) -> list[dict[str, object]]:
    return [json.loads(f.read_text(encoding="utf-8")) for f in sorted(place.machine.cache.glob("*.json"))]


def _cached(
    entries: list[dict[str, object]], refs: tuple[str, ...], key: str, prefixes: list[str]
) -> dict[str, object] | None:
    """The entry with this key, else the newest whose key begins with it or with a prefix; of the
    first ref."""
    for ref in refs:
        here = [e for e in entries if e["ref"] == ref]
        fitting = [[e for e in here if e["key"] == key]]
        fitting += [[e for e in here if str(e["key"]).startswith(prefix)] for prefix in (key, *prefixes)]
        for some in filter(None, fitting):
            return max(some, key=lambda e: str(e["when"]))
    return None


def _unpack(archive: tarfile.TarFile, number: int, into: Path) -> None:
    """Extract one of the saved paths, a file or a folder."""
    # Not by arguments: Debian 12's Python 3.11.2 knows neither filters nor TarInfo.replace.
    archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
    for member in archive.getmembers():
        first, _, inside = member.name.partition("/")
        if first == str(number):
            target = into / inside
            renamed = copy.copy(member)
            renamed.name = target.name
            archive.extract(renamed, target.parent, set_attrs=True)


def _git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = captured(["git", *arguments])
    if check and done.returncode:
        raise CheckFailed(f"git {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done
