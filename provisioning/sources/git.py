"""A repository at exactly one commit, with its submodules, without its history."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import StringConstraints

from provisioning.base.commands import captured
from provisioning.base.documents import Model
from provisioning.base.errors import EnvironmentLacking, IntegrityError, ToolkitError, UpstreamError
from provisioning.base.files import hash_file
from provisioning.base.progress import SILENT, Progress
from provisioning.download.server import redact, redact_text
from provisioning.download.transfer import Fetched
from provisioning.sources import Https, Place

if TYPE_CHECKING:
    from provisioning.archive import Entry

Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class Git(Model):
    """A repository at one commit."""

    type: Literal["git"]
    url: Https
    tag: str
    commit: Commit | None = None
    submodules: bool = True
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

    def unpack(self, fetched: Path, into: Path, place: Place, progress: Progress = SILENT) -> list[Entry]:
        from provisioning.archive import Entry

        entries = []
        for path in files(fetched, self):
            if (destination := place(path)) is None:
                continue
            target = into / destination
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(fetched / path, target, follow_symlinks=False)
            size = target.lstat().st_size
            if target.is_symlink():
                link = os.readlink(target)  # noqa: PTH115  a Path would normalise the text
                entries.append(Entry(destination, "link", size, "", 0o777, link))
            else:
                mode = 0o755 if target.stat().st_mode & 0o111 else 0o644
                entries.append(Entry(destination, "file", size, hash_file(target), mode))
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
        if changed := _git(["status", "--porcelain"], into, source).splitlines():
            raise IntegrityError(
                f"{into}: expected no changes since the checkout, found {len(changed)}: {changed[0]}",
                fix=f"rm -rf {shlex.quote(str(into))}, and run the same command again",
            )
        return present
    building = into.with_name(f"{into.name}.part")
    # A kill may leave what git itself cannot continue.
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    progress.start(f"{redact(source.url)} {source.tag}", None)
    try:
        commit = _build(source, building)
        building.rename(into)
    finally:
        progress.finish()
    return commit


def files(checkout: Path, source: Git) -> list[str]:
    """The files of the commit and its submodules; others, ignored ones for example, are not verified."""
    listed = _git(["ls-files", "-z", "--recurse-submodules"], checkout, source)
    # A submodule that is not checked out is listed as one entry, a folder.
    return sorted(
        path
        for path in listed.split("\0")
        if path and ((checkout / path).is_symlink() or not (checkout / path).is_dir())
    )


def _build(source: Git, building: Path) -> str:
    _git(["init", "--quiet"], building, source)
    # The tag and not the commit, which alone does not show its version.
    tag = f"refs/tags/{source.tag}"
    _git(["fetch", "--quiet", "--depth=1", "--no-tags", source.url, tag], building, source)
    commit = _git(["rev-parse", "FETCH_HEAD^{commit}"], building, source)
    if source.commit not in (None, commit):
        raise IntegrityError(
            f"{redact(source.url)}: tag {source.tag}: expected commit {source.commit}, found {commit}: "
            "the tag was moved or the pin is wrong",
            fix="find out which before you change the pin; a tree of your own is used when its variable "
            "names it",
        )
    _git(["checkout", "--quiet", "--force", "--detach", commit], building, source)
    if source.submodules and (building / ".gitmodules").is_file():
        # Relative submodule addresses are resolved against the origin.
        _git(["config", "remote.origin.url", source.url], building, source)
        _git(
            ["submodule", "--quiet", "update", "--init", "--recursive", "--depth=1", "--force", "--jobs=4"],
            building,
            source,
        )
    head = _git(["rev-parse", "HEAD"], building, source)
    if head != commit or _git(["status", "--porcelain", "--untracked-files=no"], building, source):
        raise IntegrityError(
            f"{building}: the checkout of {commit} is not clean", fix=f"remove {building} and try again"
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
    done = captured(command, cwd=folder, env=environ)
    if done.returncode:
        raise _explain(source, arguments[0], done.stderr, folder)
    return done.stdout.strip()


_COMPLAINTS: Sequence[tuple[str, str, str]] = (
    (
        r"couldn't find remote ref",
        "there is no such tag",
        "correct url, tag and commit in the manifest",
    ),
    (
        r"returned error: 40[13]",
        "the server refused the request",
        "check that your account may read this repository, and set up a git credential helper",
    ),
    (
        r"returned error: 407",
        "the server refused the request",
        "put the proxy's user and password into HTTPS_PROXY",
    ),
    (
        r"could not resolve host|unable to access|timed out|connection",
        "the repository could not be reached",
        "check the network and HTTPS_PROXY, then run the same command again",
    ),
    (
        r"authentication|could not read username|permission denied|not found|not appear to be",
        "there is no such repository, or it needs credentials",
        "correct the manifest's url, or set up a git credential helper",
    ),
)
"""Our words for git's complaints: pattern, message, fix. The first pattern that fits counts."""


def _explain(source: Git, step: str, text: str, folder: Path) -> ToolkitError:
    text = redact_text(text)
    last_words = " ".join([line.strip() for line in text.splitlines() if line.strip()][-2:])[:300]
    where = redact(source.url)
    if "No space left" in text or "Read-only file system" in text or "cannot create" in text:
        fix = "free some space or choose another disk"
        return EnvironmentLacking(f"{folder}: git {step}: {last_words}", fix=fix, output=text)
    for pattern, message, fix in _COMPLAINTS:
        if re.search(pattern, text, re.IGNORECASE):
            return UpstreamError(f"{where}: {message}: {last_words}", fix=fix, output=text)
    message = f"{where}: git {step} failed: {last_words}"
    return UpstreamError(message, fix="run the same command again", output=text)
