"""Publish a release on GitHub: create a draft, fill it, and only then publish it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ci.github.release import NAME, SUMS, notes, tagged_version
from provisioning.base.commands import captured, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UpstreamError, UsageError
from provisioning.base.files import hash_file
from provisioning.base.settings import ROOT


def run(environ: Mapping[str, str], root: Path = ROOT) -> int:
    """Read GITHUB_REF_NAME, the tag; QNN_CI_RELEASE, the folder with the release's files; and QNN_CI_GOLDEN,
    a folder of programs to publish as one archive.

    The program gh reads its token from GH_TOKEN. A draft that an earlier try left is filled again.
    """
    version, tag = tagged_version(environ, root), environ["GITHUB_REF_NAME"]
    if shutil.which("gh") is None:
        raise EnvironmentLacking("gh is not on PATH", fix="install GitHub's command line, gh")
    folder = Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_RELEASE", "")).absolute()
    files = checked_files(folder)
    draft = _is_draft(tag)
    if draft is False:
        raise CheckFailed(f"the release {tag} is published, and stays as it is", fix="tag a new version")
    with tempfile.TemporaryDirectory() as scratch:
        if golden := environ.get("QNN_CI_GOLDEN"):
            files.append(_archive(Path(environ.get("GITHUB_WORKSPACE", ""), golden), Path(scratch), version))
        text = Path(scratch, "notes.md")
        text.write_text(notes(root, version), encoding="utf-8")
        about = ["--title", tag, "--notes-file", str(text)]
        if draft is None:
            _gh("release", "create", tag, "--draft", "--verify-tag", *about)
        else:
            _gh("release", "edit", tag, *about)
        _gh("release", "upload", tag, "--clobber", *map(str, files))
        _gh("release", "edit", tag, "--draft=false")
    sys.stdout.write(f"published {tag} with {len(files)} files\n")
    return 0


def checked_files(folder: Path) -> list[Path]:
    """SHA256SUMS and the files that it names, each with its hash; no other file may be there."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{folder / SUMS}: {error.strerror}", fix=session("release")) from error
    named = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = {path.name: path for path in folder.iterdir() if path.name != SUMS}
    differing = [
        name
        for name in sorted({*named, *there})
        if name not in named or name not in there or hash_file(there[name]) != named[name]
    ]
    if differing or not named:
        raise CheckFailed(
            f"{folder}: {', '.join(differing) or 'no file'} {'is' if len(differing) < 2 else 'are'} not what"
            f" {SUMS} names",
            fix="make the release again",
        )
    return [*there.values(), folder / SUMS]


def _archive(folder: Path, into: Path, version: str) -> Path:
    """One file, because a release has no folders. Its SHA256SUMS are attested."""
    name = f"{NAME}-{version}-golden"
    return Path(shutil.make_archive(str(into / name), "gztar", folder))


def _is_draft(tag: str) -> bool | None:
    """None if there is no release with this tag."""
    done = captured(["gh", "release", "view", tag, "--json", "isDraft"])
    if done.returncode == 0:
        return bool(json.loads(done.stdout)["isDraft"])
    if "not found" in done.stderr:
        return None
    raise UpstreamError(f"gh release view {tag}: {done.stderr.strip()}", fix="run the job again")


def _gh(*arguments: str) -> None:
    done = subprocess.run(["gh", *arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UpstreamError(
            f"gh {' '.join(arguments[:3])}: {done.stderr.strip()}",
            fix="run the job again: what is not published yet is filled anew",
        )
