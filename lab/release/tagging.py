"""A release in this clone: two commits, a tag and the files of dist/release.

The first commit has the version and the address, and is tagged. The second names the first one in the pages,
because no commit can name itself. Neither touches a branch or the work tree: at the end the tag and a new
branch appear at once.
"""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.release.files import git, notes, write_files
from provisioning.base.commands import quote_command, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import PLACEHOLDER, Project, project

FILLED_WHERE_PRINTED = "manifests"
"""`compile --suite` and `adopt` fill in the address and the commit of the copy that prints its workflows."""

ADDRESS = re.compile(r"(?:https://[\w.-]+(?::\d+)?|file:///[\w./-]+)/([\w.-]+/[\w.-]+)(?<!\.git)")
ON_GITHUB = re.compile(r"(?:\S*[\w-]\.[\w.-]+[:/])?([\w-]+/[\w.-]+?)(?:\.git)?/?")
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")

TO_THE_OWNER = """\
{tag} is tagged, and dist/release has its archive, bill of materials, notes and checksums.
Three things are its owner's:
  1. Push it. If there is no repository at that address yet, make it first.
       {publish}
  2. In the repository's settings make the environment `release`, with yourself as its reviewer. Allow actions
     to open pull requests, and people to report vulnerabilities privately. Require the check `verdict`.
  3. Approve the run of release.yml that the tag starts. It makes these files again, attests and publishes
     them: its SHA256SUMS must be the one in dist/release.
To take the release back before the push:
       {withdraw}
"""


@dataclass(frozen=True, slots=True)
class OwnRelease:
    address: str
    version: str
    day: dt.date

    @property
    def tag(self) -> str:
        return f"v{self.version}"

    @property
    def branch(self) -> str:
        return f"release-{self.tag}"

    @property
    def withdraw(self) -> str:
        no_tag = quote_command("git", "tag", "-d", self.tag)
        no_branch = quote_command("git", "branch", "-D", self.branch)
        return f"{no_tag} && {no_branch}"


def release_of(address: str, version: str, day: dt.date) -> OwnRelease:
    """Reject what is no address of a repository, and what is no version."""
    match = ADDRESS.fullmatch(address)
    if not match or match[1] == PLACEHOLDER:
        meant = ON_GITHUB.fullmatch(address)
        name = meant[1] if meant and meant[1] != PLACEHOLDER else "YOU/qnn-ci"
        raise UsageError(
            f"expected the repository's address, such as https://github.com/YOU/qnn-ci, found {address!r}",
            fix=session("lab", "release", f"https://github.com/{name}"),
        )
    if not VERSION.fullmatch(version):
        without_v = version.removeprefix("v")
        raise UsageError(
            f"expected a version such as 1.0.0 or 1.0.0rc1, found {version!r}",
            fix=session(
                "lab",
                "release",
                address,
                "--version",
                without_v if VERSION.fullmatch(without_v) else "1.0.0",
            ),
        )
    return OwnRelease(address, version, day)


def tag_release(root: Path, release: OwnRelease) -> str:
    """Make the release of HEAD; return what is left to the owner. If it fails, nothing is tagged."""
    _require_committed(root, release)
    _require_new(root, release)
    texts = released_texts(root, release)
    text = notes(texts["CHANGELOG.md"], release.version)
    tagged = _commit(root, texts, "HEAD", f"Release {release.tag}")
    pages = {name: pinned for name, text in texts.items() if (pinned := replace_commit(text, tagged)) != text}
    tip = _commit(root, pages, tagged, f"Pages name {release.tag}")
    write_files(root, tagged, release.version, text)
    references = {
        f"refs/tags/{release.tag}": _annotated_tag(root, release, tagged),
        f"refs/heads/{release.branch}": tip,
    }
    # One transaction, which makes both or none.
    creations = "".join(f"create {name} {commit}\n" for name, commit in references.items())
    git(root, "update-ref", "--stdin", text=creations)
    branch = git(root, "branch", "--show-current").strip() or "main"
    merge = quote_command("git", "merge", "--ff-only", release.branch)
    push = quote_command("git", "push", "--atomic", release.address, f"HEAD:{branch}", release.tag)
    return TO_THE_OWNER.format(tag=release.tag, publish=f"{merge} && {push}", withdraw=release.withdraw)


def _require_committed(root: Path, release: OwnRelease) -> None:
    if changed := git(root, "status", "--porcelain").splitlines():
        raise CheckFailed(
            f"a release is made of commits, and {len(changed)} files are not committed: {changed[0][3:]} …",
            fix=f"commit or stash them, then {session('lab', 'release', release.address)}",
        )


def _require_new(root: Path, release: OwnRelease) -> None:
    names = git(root, "for-each-ref", "--format=%(refname:short)", "refs/tags", "refs/heads").split()
    for name in (release.tag, release.branch):
        if name in names:
            major, minor, _ = release.version.split(".")
            following = f"{major}.{int(minor) + 1}.0"
            again = session("lab", "release", release.address, "--version", following)
            raise UsageError(
                f"{name} is there already",
                fix=f"release the next version: {again}; or, if nobody has this one: {release.withdraw}",
            )


def released_texts(root: Path, release: OwnRelease) -> dict[str, str]:
    """The texts that the release changes, by name."""
    before = project(root)
    if not before.repository:
        raise CheckFailed(
            "pyproject.toml has no address of this repository",
            fix=f'write Repository = "https://github.com/{PLACEHOLDER}" below [project.urls]',
        )
    after = Project(release.version, release.address)
    named_in = git(root, "grep", "-lIF", "-e", before.name, "--", ":!*.py", f":!{FILLED_WHERE_PRINTED}")
    texts = {name: replace_address(_text(root, name), before, after) for name in named_in.splitlines()}
    unreleased = rf"## (?:Unreleased|{re.escape(release.version)})(?: .*)?"
    for name, line, new in (
        ("pyproject.toml", "version = .*", f'version = "{release.version}"'),
        ("CITATION.cff", "version: .*", f"version: {release.version}"),
        ("CITATION.cff", "date-released: .*", f"date-released: {release.day}"),
        ("CHANGELOG.md", unreleased, f"## {release.version} ({release.day})"),
    ):
        texts[name], count = re.subn(f"(?m)^{line}$", new, texts.get(name) or _text(root, name))
        if count != 1:
            raise CheckFailed(
                f"{name}: expected one line such as {new!r}, found {count}", fix=f"write one into {name}"
            )
    return texts


def _text(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def replace_address(text: str, before: Project, after: Project) -> str:
    """Write the new address and version. The release's commit is not known yet: COMMIT stands for it."""
    text = text.replace(before.repository, after.repository)
    text = re.sub(rf"(?<![\w/-]){re.escape(before.name)}(?![\w-])", after.name, text)
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        # `rev:` is below the address in a configuration of pre-commit.
        if after.name in line or line.lstrip().startswith("rev: "):
            with_version = re.sub(r"\bVERSION\b|\bv\d+\.\d+\.\d+\w*", f"v{after.version}", line)
            lines[number] = re.sub(r"(?<=[@/ ])[0-9a-f]{40}\b", "COMMIT", with_version)
    return "".join(lines)


def replace_commit(text: str, commit: str) -> str:
    return re.sub(r"(?<=[@/])COMMIT\b|(?<=rev: )COMMIT\b", commit, text)


def _commit(root: Path, texts: Mapping[str, str], parent: str, message: str) -> str:
    """A commit of `parent` with these texts, which no branch has."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        git(root, "read-tree", parent, variables=index)
        for name, text in texts.items():
            content = git(root, "hash-object", "-w", "--stdin", text=text).strip()
            git(root, "update-index", "--cacheinfo", f"100644,{content},{name}", variables=index)
        tree = git(root, "write-tree", variables=index).strip()
    return git(root, "commit-tree", tree, "-p", parent, "-m", message).strip()


def _annotated_tag(root: Path, release: OwnRelease, commit: str) -> str:
    """A tag that no reference has."""
    tagger = git(root, "var", "GIT_COMMITTER_IDENT").strip()
    about = f"object {commit}\ntype commit\ntag {release.tag}\ntagger {tagger}\n\n{release.tag}\n"
    return git(root, "mktag", text=about).strip()
