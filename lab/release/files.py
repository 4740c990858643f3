"""What release.yml publishes: source archive, bill of materials, checksums, images.

The bytes are the same wherever and whenever they are made. The workflow's steps attest and publish them.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ci.builds.source import bill_item, document, package_url
from ci.image.contents import ENVIRONMENTS_INSIDE, ImagePlan
from ci.image.engine import Engine
from provisioning.base.commands import quote_command, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import empty_folder, hash_file
from provisioning.base.settings import MANIFESTS, PLACEHOLDER, ROOT, project
from provisioning.lock_files import entries_in

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

NAME = "qnn-ci"
SUMS = "SHA256SUMS"

NOTES = "notes.md"

RELEASE = session("lab", "release", "https://github.com/YOU/qnn-ci")
"""The command that writes the address wherever it is needed."""

FOR_DEVELOPERS = ("lint", "tests")
"""Environments that no user's session runs in."""

IMAGES = ("base", "executorch")
"""What may be published: the images without any vendor's SDK."""

VENDORS = re.compile(r"(?:^|/)(?:lib)?Qnn\w*\.(?:so|dll)\b|(?:^|/)libQnn|hexagon-v\d+/", re.IGNORECASE)
"""Files that Qualcomm's licence does not let anybody distribute alone."""


LIST_PACKAGES = r"dpkg-query --show --showformat '${Package}\t${Version}\n'"
LIST_DISTRIBUTIONS = """
import importlib.metadata as metadata, json
found = {(d.name, d.version, d.metadata["License-Expression"] or "") for d in metadata.distributions()}
print(json.dumps(sorted(found)))
"""


def require_releasable(root: Path) -> None:
    """Known before anything is attested."""
    repository = project(root).repository
    if not repository or PLACEHOLDER in repository:
        raise CheckFailed(
            f"pyproject.toml has no address of this repository, found {repository or 'none'}",
            fix=RELEASE,
        )
    pages = git(root, "ls-files", "*.md").splitlines()
    if left := [page for page in pages if PLACEHOLDER in (root / page).read_text(encoding="utf-8")]:
        raise CheckFailed(
            f"{PLACEHOLDER} is no address, and still printed by {', '.join(left)}",
            fix=RELEASE,
        )
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    notes(changelog, project(root).version)


def make(environ: Mapping[str, str], root: Path = ROOT) -> None:
    """Write to dist/release; for a tag, which must be the version of pyproject.toml, with its notes."""
    version, text = project(root).version, ""
    if environ.get("GITHUB_REF_TYPE") == "tag":
        require_tag(environ.get("GITHUB_REF_NAME", ""), version)
        require_releasable(root)
        text = notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    sys.stdout.write(write_files(root, "HEAD", version, text))


def write_files(root: Path, commit: str, version: str, text: str) -> str:
    """Write dist/release of a commit, with the release's notes if there are some; return its checksums."""
    into = empty_folder(root / "dist" / "release")
    archive = into / f"{NAME}-{version}.tar.gz"
    # The files of the commit, with the commit's time; gzip stores none.
    tar = git_bytes(root, "archive", "--format=tar", f"--prefix={NAME}-{version}/", commit)
    archive.write_bytes(gzip.compress(tar, mtime=0))
    bill = into / f"{NAME}.cdx.json"
    when = dt.datetime.fromtimestamp(int(git(root, "log", "-1", "--format=%ct", commit)), dt.timezone.utc)
    bill.write_text(bill_of_materials(version, archive, when, MANIFESTS), encoding="utf-8")
    files = [archive, bill]
    if text:
        (into / NOTES).write_text(text, encoding="utf-8")
        files.append(into / NOTES)
    sums = "".join(f"{hash_file(path)}  {path.name}\n" for path in files)
    (into / SUMS).write_text(sums, encoding="utf-8")
    return sums


def require_tag(tag: str, version: str) -> None:
    if tag != f"v{version}":
        raise UsageError(f"{tag}: expected the tag v{version}", fix=f"push the tag v{version}")


def notes(changelog: str, version: str) -> str:
    """What CHANGELOG.md says of a version."""
    section = re.search(rf"^## {re.escape(version)}(?![\w.])[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if section is None or not section[1].strip():
        raise CheckFailed(
            f"CHANGELOG.md has no section {version!r}, or nothing in it",
            fix=f"write what is new below the heading {version}, and commit that",
        )
    return section[1].strip() + "\n"


def bill_of_materials(version: str, archive: Path, when: dt.datetime, manifests: Path) -> str:
    """The archive, the packages of users' environments, the components that profiles pin."""
    release = bill_item(
        NAME,
        version,
        kind="application",
        licence="BSD-3-Clause",
        sha256=hash_file(archive),
        description=archive.name,
    )
    return document(release, [*locked_packages(manifests), *pinned_components(manifests)], created=when)


def locked_packages(manifests: Path) -> list[Component]:
    hashes: dict[tuple[str, str], set[str]] = {}
    for file in sorted((manifests / "locks").glob("*.txt")):
        if file.stem in FOR_DEVELOPERS:
            continue
        # Torch's line is a comment for installers, because its build differs by index.
        text = file.read_text(encoding="utf-8").replace("# torch: ", "")
        for entry in entries_in(text):
            hashes.setdefault((entry.name, entry.version), set()).update(entry.hashes)
    return [
        bill_item(
            name,
            version,
            purl=package_url("pypi", name, version),
            description=f"one of {len(files)} files, whose SHA-256 the lock names" if files else "",
        )
        for (name, version), files in hashes.items()
    ]


def pinned_components(manifests: Path) -> list[Component]:
    """What provisioning downloads for a user who accepts the vendor's licence: no part of the release."""
    from provisioning.manifest import load_profile

    return [
        bill_item(
            f"{name} ({part.name}) of the profile {file.stem}",
            component.version,
            sha256=getattr(part.source, "sha256", None) or "",
        )
        for file in sorted((manifests / "profiles").glob("*.toml"))
        for name, component in load_profile(file.stem).components.items()
        for part in component.parts
    ]


def git(
    root: Path, *arguments: str, text: str | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """What git prints; `text` is what it reads."""
    return git_bytes(root, *arguments, content=(text or "").encode(), variables=variables).decode()


def git_bytes(
    root: Path, *arguments: str, content: bytes = b"", variables: Mapping[str, str] | None = None
) -> bytes:
    command = ["git", *arguments]
    environ = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, cwd=root, input=content, capture_output=True, env=environ, check=False)
    except FileNotFoundError:
        raise EnvironmentLacking("git is not installed", fix="sudo apt-get install git") from None
    if done.returncode:
        raise EnvironmentLacking(
            f"{quote_command(*command)}: {done.stderr.decode(errors='replace').strip()}",
            fix="release from a git checkout in which you can commit",
        )
    return done.stdout


def check_image(archive: Path, name: str) -> None:
    """Refuse an image that has files of a vendor, or that is another one than its name says."""
    try:
        with tarfile.open(archive) as image:
            (manifest,) = json.loads(_member(image, "manifest.json").read())
            labels = json.loads(_member(image, manifest["Config"]).read())["config"]["Labels"]
            names = [file for layer in manifest["Layers"] for file in _files(_member(image, layer))]
    except (OSError, tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise CheckFailed(f"{archive}: not an archive of an image: {error}", fix="build it again") from error
    if labels.get("qnn-ci.image") != name:
        raise CheckFailed(f"{archive} is the image {labels.get('qnn-ci.image')!r}", fix="build it again")
    vendors = [file for file in names if VENDORS.search(file)]
    if vendors or labels.get("qnn-ci.not-to-be-published"):
        raise CheckFailed(
            f"{archive} has {', '.join(vendors[:3]) or 'an SDK'}, and its vendor lets nobody publish that",
            fix=f"take what brings it out of [images.{name}] in manifests/images.toml",
        )


def bill_of_image(plan: ImagePlan, engine: Engine) -> str:
    """The Debian packages and Python distributions that the image itself lists."""
    pythons = [
        quote_command(f"{ENVIRONMENTS_INSIDE}/{environment}/bin/python", "-c", LIST_DISTRIBUTIONS)
        for environment in plan.environments
    ]
    # One container for all, because starting it takes longest.
    script = " && ".join([*pythons, LIST_PACKAGES])
    done = engine.run(plan.tag, ["sh", "-ec", script], read_only=True)
    if done.returncode:
        raise CheckFailed(
            f"{plan.tag} cannot list its contents: {done.stderr.strip()}", fix="build the image again"
        )
    lines = done.stdout.splitlines()
    python = [package for line in lines[: len(pythons)] for package in json.loads(line)]
    debian = [line.split("\t") for line in lines[len(pythons) :]]
    items = [
        bill_item(name, version, purl=package_url("deb", name, version, "debian")) for name, version in debian
    ]
    items += [
        bill_item(name, version, purl=package_url("pypi", name, version), licence=licence)
        for name, version, licence in python
    ]
    labels = engine.attributes(plan.tag)["Config"]["Labels"] or {}
    return document(bill_item(plan.tag, kind="container"), items, labels)


def _member(image: tarfile.TarFile, name: str) -> IO[bytes]:
    file = image.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file


def _files(layer: IO[bytes]) -> list[str]:
    with tarfile.open(fileobj=layer) as files:
        return files.getnames()
