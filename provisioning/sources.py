"""Sources of a part's bytes: a vendor's zip, a wheel of a package index, a repository at one commit.

A source is both the manifest's table and the code that fetches and unpacks it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, StringConstraints

from provisioning import pip_settings
from provisioning.addresses import MIRROR_VARIABLE, file_name, mirror_of, redact, redact_text
from provisioning.base.commands import capture, quote_command
from provisioning.base.documents import Model
from provisioning.base.errors import (
    EnvironmentLacking,
    IntegrityError,
    ManifestError,
    ToolkitError,
    UpstreamError,
)
from provisioning.base.files import TreeFile, hash_file
from provisioning.base.progress import SILENT, Progress
from provisioning.base.proxies import dead_proxy
from provisioning.base.settings import MANIFESTS
from provisioning.download import Fetched, Transfer, fetch

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Https = Annotated[str, StringConstraints(pattern=r"^(https://|http://127\.0\.0\.1[:/])\S+$")]
Place = Callable[[str], str | None]
"""A function that says where a member of what was fetched is put; None leaves the member out."""
Version = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+-]*$")]


class FileSource(Model):
    """One zip file (also .whl, .aar, .jar), named by its sha256 where that is known."""

    sha256: Sha256 | None = None
    size: Annotated[int, Field(gt=0)] | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in messages and inventories."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Identifies the file while its hash is not known."""

    @property
    def pin(self) -> str | None:
        """The digest that identifies the bytes; None until one is recorded."""
        return self.sha256

    @property
    def prefix(self) -> str:
        """The folder with all its files, which is left out of a tree."""
        return ""

    def landing_place(self, downloads: Path) -> Path:
        """Return where the file is kept: under its hash, or under its name and address while no hash is
        known.

        A file that was fetched before its hash was recorded is renamed, so that recording costs no
        download."""
        unpinned = downloads / f"{hashlib.sha256(self.address.encode()).hexdigest()[:12]}-{self.name}"
        if self.pin is None:
            return unpinned
        place = downloads / self.pin
        if unpinned.is_file() and not place.exists():
            with suppress(FileNotFoundError):  # another process was first
                unpinned.replace(place)
        return place

    def unpack(self, download: Path, into: Path, place: Place, progress: Progress = SILENT) -> list[TreeFile]:
        """Put the files that `place` gives a destination below `into`."""
        from provisioning.archive import extract

        return extract(download, into, place, progress=progress, name=self.name)


class Archive(FileSource):
    """An https zip. Without `sha256` the component is unlocked."""

    type: Literal["archive"]
    url: Https
    strip: str = ""
    """The leading directory of every member, removed before placing: `qairt/2.37.0.250724/`."""

    @property
    def name(self) -> str:
        return file_name(self.url)

    @property
    def address(self) -> str:
        return self.url

    @property
    def prefix(self) -> str:
        return self.strip

    def fetch(self, downloads: Path, progress: Progress = SILENT) -> Fetched:
        return fetch(
            mirror_of(self.url),
            self.landing_place(downloads),
            sha256=self.sha256,
            size=self.size,
            progress=progress,
            name=self.name,
        )


# Wheels: pip finds the address, so that index, find-links, proxies and certificates mean what they mean
# everywhere else; our own transfer fetches it, resumes and shows its progress.

ANOTHER_INDEX = "name an index that has this wheel in PIP_INDEX_URL"


class Wheel(FileSource):
    """A wheel from the package index the user's pip or uv is set to."""

    type: Literal["wheel"]
    package: str
    version: Version
    filename: Annotated[str, StringConstraints(pattern=r"\.whl$")]

    @property
    def name(self) -> str:
        return self.filename

    @property
    def address(self) -> str:
        return f"wheel:{self.filename}"

    def fetch(self, downloads: Path, progress: Progress = SILENT) -> Fetched:
        into, sha256, size = self.landing_place(downloads), self.sha256, self.size
        # A finished copy needs no index, so a filled store works offline.
        if present := Transfer(into, sha256, size, progress, self.filename).reuse():
            return present
        url = pip_settings.add_credentials(_address(self), os.environ)
        try:
            return fetch(url, into, sha256=sha256, size=size, progress=progress, name=self.filename)
        except UpstreamError as error:
            # A mirror takes the place of other addresses than an index's.
            if MIRROR_VARIABLE not in (error.fix or ""):
                raise
            raise type(error)(error.message, fix=ANOTHER_INDEX, output=error.output) from None


def _address(source: Wheel) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        nothing_is_installed = ["--dry-run", "--ignore-installed", "--target", folder]
        process = capture(
            [*_pip(source), "install", *_options(source), *nothing_is_installed, "--report", str(report)],
            env=_variables_of_pip(),
        )
        if process.returncode:
            raise explained_pip(source, process.stderr)
        text = report.read_text(encoding="utf-8")
    try:
        urls: list[str] = [item["download_info"]["url"] for item in json.loads(text)["install"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UpstreamError(
            f"{source.filename}: pip's report cannot be read ({type(error).__name__})",
            fix=quote_command(*_pip(source), "install", "--upgrade", "pip"),
        ) from error
    for url in urls:
        if wheel_name(url) == source.filename:
            return url
    names = ", ".join(sorted(map(wheel_name, urls))[:5]) or "nothing"
    raise UpstreamError(
        f"expected {source.filename} from the package index, found {names}",
        fix=ANOTHER_INDEX,
    )


def _pip(source: Wheel) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip"):
        return [pip]
    raise EnvironmentLacking(
        f"{source.filename}: pip, which asks the package index, is not in this Python ({sys.executable})",
        fix=quote_command(sys.executable, "-m", "ensurepip"),
    )


def _options(source: Wheel) -> list[str]:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        parse_wheel_filename(source.filename)
    except InvalidWheelFilename as error:
        raise ManifestError(
            MANIFESTS / "profiles", "filename", expected="a wheel's file name", found=repr(source.filename)
        ) from error
    python, abi, platforms = source.filename.removesuffix(".whl").split("-")[-3:]
    implementation = re.match(r"[a-z]+", python)
    return [
        *("--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
        # If the index has no separate metadata, read it without fetching the whole wheel.
        "--use-feature=fast-deps",
        # A wheel for every Python 3 may still require a newer one than 3.0: then this one decides.
        *(("--python-version", version) if "." in (version := python_version(python)) else ()),
        *("--implementation", implementation.group() if implementation else "cp", "--abi", abi),
        *(word for platform in platforms.split(".") for word in ("--platform", platform)),
        f"{source.package}=={source.version}",
    ]


def _variables_of_pip() -> dict[str, str]:
    """The user's settings, without those that concern installing."""
    installing = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_REQUIRE_HASHES": "0", "PIP_USER": "0"}
    return {**os.environ, **pip_settings.pip_variables(os.environ), **installing}


def python_version(tag: str) -> str:
    """`cp311` → 3.11, `py3` → 3, `py2.py3` → 3."""
    digits = max(re.findall(r"\d+", tag) or ["3"], key=lambda d: (d[0], int(d[1:] or 0)))
    return f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits


def wheel_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


_OF_PIP: Sequence[tuple[str, type[ToolkitError], str, str]] = (
    (
        r"No space left|Errno 28\b|Disk quota exceeded",
        EnvironmentLacking,
        "pip has no room for its temporary files",
        "free some space there, or name a folder with room in TMPDIR",
    ),
    ("do not match the hashes", IntegrityError, "the index sent other bytes than it names", ""),
    (
        "",
        UpstreamError,
        "the package index does not give it",
        "check the index and its credentials (`pip config list`, ~/.netrc), the network and HTTPS_PROXY,"
        " or name an index that has it in PIP_INDEX_URL",
    ),
)
"""Our words for pip's complaints: pattern, error, message, fix. The first pattern that fits counts."""


def explained_pip(source: Wheel, text: str) -> ToolkitError:
    text = redact_text(text)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    last_words = " ".join(errors[-2:])[:400] or "(it printed nothing)"
    if name := dead_proxy(text):
        return UpstreamError(
            f"{source.filename}: the proxy that {name} names does not answer",
            fix=f"correct {name}, or unset it: unset {name}",
            output=text,
        )
    kind, message, fix = next(
        (kind, message, fix)
        for pattern, kind, message, fix in _OF_PIP
        if re.search(pattern, text, re.IGNORECASE)
    )
    return kind(
        f"{source.package}=={source.version} ({source.filename}): {message}: {last_words}",
        fix=fix,
        output=text,
    )


# Repositories, without their history

Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class Git(Model):
    """A repository at one commit."""

    type: Literal["git"]
    url: Https
    tag: str
    commit: Commit | None = None
    prefix: ClassVar[str] = ""

    @property
    def name(self) -> str:
        return self.tag

    @property
    def pin(self) -> str | None:
        return self.commit

    def landing_place(self, downloads: Path) -> Path:
        return downloads / f"git-{(self.commit or self.tag).replace('/', '-')}"

    def fetch(self, downloads: Path, progress: Progress = SILENT) -> Fetched:
        into = self.landing_place(downloads)
        return Fetched(into, checkout(self, into, progress), 0)

    def unpack(self, folder: Path, into: Path, place: Place, progress: Progress = SILENT) -> list[TreeFile]:
        entries = []
        for path in files_of(folder, self):
            if (destination := place(path)) is None:
                continue
            target = into / destination
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / path, target, follow_symlinks=False)
            size = target.lstat().st_size
            if target.is_symlink():
                link = os.readlink(target)  # noqa: PTH115  a Path would normalise the text
                entries.append(TreeFile(destination, "link", size, "", 0o777, link))
            else:
                mode = 0o755 if target.stat().st_mode & 0o111 else 0o644
                entries.append(TreeFile(destination, "file", size, hash_file(target), mode))
        return entries


def checkout(source: Git, into: Path, progress: Progress = SILENT) -> str:
    """Put the pinned commit at `into` and return its id; without a pin, the commit that the tag names now.

    The tag must name the pinned commit: the pin fixes the files, the tag is their version.
    The work is done in a folder beside `into`, which is renamed when it is complete. A finished checkout of
    the commit is used again.
    """
    if shutil.which("git") is None:
        raise EnvironmentLacking(
            f"git is needed to fetch {redact(source.url)}, and it is not on PATH",
            fix="install git (Debian and Ubuntu: apt-get install git)",
        )
    if (into / ".git").exists():
        present = _git(["rev-parse", "HEAD"], into, source)
        if source.commit not in (None, present):
            raise IntegrityError(
                f"{into}: expected commit {source.commit}, found {present}", fix=f"remove {into}"
            )
        if changes := _git(["status", "--porcelain"], into, source).splitlines():
            raise IntegrityError(
                f"{into}: expected no changes since the checkout, found {len(changes)}: {changes[0]}",
                fix=f"rm -rf {shlex.quote(str(into))}, and run the same command again",
            )
        return present
    part = into.with_name(f"{into.name}.part")
    # A kill may leave what git itself cannot continue.
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    progress.start(f"{redact(source.url)} {source.tag}", None)
    try:
        commit = _build(source, part)
        part.rename(into)
    finally:
        progress.finish()
    return commit


def files_of(checkout: Path, source: Git) -> list[str]:
    """The files of the commit and its submodules; others, ignored ones for example, are not verified."""
    output = _git(["ls-files", "-z", "--recurse-submodules"], checkout, source)
    # A submodule that is not checked out is listed as one entry, a folder.
    return sorted(
        path
        for path in output.split("\0")
        if path and ((checkout / path).is_symlink() or not (checkout / path).is_dir())
    )


def _build(source: Git, part: Path) -> str:
    _git(["init", "--quiet"], part, source)
    # The tag and not the commit, which alone does not show its version.
    tag = f"refs/tags/{source.tag}"
    _git(["fetch", "--quiet", "--depth=1", "--no-tags", source.url, tag], part, source)
    commit = _git(["rev-parse", "FETCH_HEAD^{commit}"], part, source)
    if source.commit not in (None, commit):
        raise IntegrityError(
            f"{redact(source.url)}: tag {source.tag}: expected commit {source.commit}, found {commit}: "
            "the tag was moved or the pin is wrong",
            fix="find out which before you change the pin; a tree of your own is used when its variable "
            "names it",
        )
    _git(["checkout", "--quiet", "--force", "--detach", commit], part, source)
    if (part / ".gitmodules").is_file():
        # Relative submodule addresses are resolved against the origin.
        _git(["config", "remote.origin.url", source.url], part, source)
        _git(
            ["submodule", "--quiet", "update", "--init", "--recursive", "--depth=1", "--force", "--jobs=4"],
            part,
            source,
        )
    head = _git(["rev-parse", "HEAD"], part, source)
    if head != commit or _git(["status", "--porcelain", "--untracked-files=no"], part, source):
        raise IntegrityError(
            f"{part}: the checkout of {commit} is not clean", fix=f"remove {part} and try again"
        )
    return commit


def _git(arguments: Sequence[str], folder: Path, source: Git) -> str:
    environ = {
        **{k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "LC_ALL": "C",
    }

    command = ["git", "-c", "advice.detachedHead=false", "-c", "core.autocrlf=false", *arguments]
    process = capture(command, cwd=folder, env=environ)
    if process.returncode:
        raise _explained_git(source, arguments[0], process.stderr, folder)
    return process.stdout.strip()


def _explained_git(source: Git, step: str, text: str, folder: Path) -> ToolkitError:
    text = redact_text(text)
    last_words = " ".join([line.strip() for line in text.splitlines() if line.strip()][-2:])[:300]
    where = redact(source.url)
    if "No space left" in text or "Read-only file system" in text or "cannot create" in text:
        fix = "free some space or choose another disk"
        return EnvironmentLacking(f"{folder}: git {step}: {last_words}", fix=fix, output=text)
    message = f"{where}: git {step} failed: {last_words}"
    fix = (
        "check the network and HTTPS_PROXY, the manifest's url, tag and commit, and that your account may"
        " read it (a git credential helper)"
    )
    return UpstreamError(message, fix=fix, output=text)
