"""A release: the source archive, a bill of materials and checksums, the same wherever they are made."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.github.files import give
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import MANIFESTS, ROOT

NAME = "qnn-ci"
# Torch's line is a comment to those who install, as its build differs by index.
_LOCKED = re.compile(r"^(?:# torch: )?(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def run(environ: Mapping[str, str]) -> int:
    """Writes to dist/release; a tag that is released must be the version that pyproject.toml has."""
    version = project_version(ROOT)
    tag = environ.get("GITHUB_REF_NAME", "")
    if environ.get("GITHUB_REF_TYPE") == "tag" and tag.removeprefix("v") != version:
        raise CheckFailed(
            f"the tag {tag} is not the version {version} of pyproject.toml", remedy=f"tag v{version}"
        )
    into = ROOT / "dist" / "release"
    into.mkdir(parents=True, exist_ok=True)
    archive = into / f"{NAME}-{version}.tar.gz"
    archive.write_bytes(source_archive(ROOT, f"{NAME}-{version}/"))
    bill = into / f"{NAME}-{version}.spdx.json"
    when = dt.datetime.fromtimestamp(int(_git(ROOT, "log", "-1", "--format=%ct")), dt.timezone.utc)
    bill.write_text(
        json.dumps(bill_of_materials(version, archive, when, MANIFESTS), indent=2) + "\n", encoding="utf-8"
    )
    sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in (archive, bill))
    (into / "SHA256SUMS").write_text(sums, encoding="utf-8")
    sys.stdout.write(sums)
    give({"archive": archive.name, "sbom": bill.name}, environ)
    return 0


def project_version(root: Path) -> str:
    match = re.search(r'^version = "([^"]+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert match is not None
    return match[1]


def source_archive(root: Path, prefix: str) -> bytes:
    """HEAD's files; git gives them the commit's time, and gzip is told none."""
    tar = _git_bytes(root, "archive", "--format=tar", f"--prefix={prefix}", "HEAD")
    return gzip.compress(tar, mtime=0)


def bill_of_materials(version: str, archive: Path, when: dt.datetime, manifests: Path) -> dict[str, Any]:
    """SPDX 2.3: the archive, the Python packages that locks name, the components that profiles pin."""
    own = {
        "SPDXID": "SPDXRef-qnn-ci",
        "name": NAME,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "licenseDeclared": "BSD-3-Clause",
        "packageFileName": archive.name,
        "checksums": [{"algorithm": "SHA256", "checksumValue": _sha256(archive)}],
    }
    needed = [*locked_packages(manifests), *pinned_components(manifests)]
    identity = hashlib.sha256(json.dumps([own, needed], sort_keys=True).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{NAME}-{version}",
        "documentNamespace": f"urn:{NAME}:{version}:{identity}",
        "creationInfo": {
            "created": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: {NAME}-{version}"],
        },
        "packages": [own, *needed],
        "relationships": [
            _related("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-qnn-ci"),
            *(_related("SPDXRef-qnn-ci", "DEPENDS_ON", str(package["SPDXID"])) for package in needed),
        ],
    }


def locked_packages(manifests: Path) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], set[str]] = {}
    for file in sorted((manifests / "locks").glob("*.txt")):
        current: set[str] = set()
        for line in file.read_text(encoding="utf-8").splitlines():
            if match := _LOCKED.match(line):
                current = found.setdefault((match["name"], match["version"]), set())
            current.update(_HASH.findall(line))
    return [
        {
            "SPDXID": _identifier("python", name, version),
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "comment": f"one of {len(hashes)} files, whose SHA-256 the lock names" if hashes else "",
            "externalRefs": [
                {
                    "referenceCategory": "PACKAGE-MANAGER",
                    "referenceType": "purl",
                    "referenceLocator": f"pkg:pypi/{name.lower()}@{version}",
                }
            ],
        }
        for (name, version), hashes in sorted(found.items())
    ]


def pinned_components(manifests: Path) -> list[dict[str, Any]]:
    """Not part of the release, but what it brings to whoever accepts the vendor's licence."""
    from provisioning.manifest import load_profile

    packages = []
    for file in sorted((manifests / "profiles").glob("*.toml")):
        profile = load_profile(file.stem)
        for name, component in profile.components.items():
            for part in component.parts:
                sha256 = getattr(part.source, "sha256", None)
                packages.append(
                    {
                        "SPDXID": _identifier(profile.name, name, part.name),
                        "name": f"{name} ({part.name}) of the profile {profile.name}",
                        "versionInfo": component.version,
                        "downloadLocation": "NOASSERTION",
                        "checksums": [{"algorithm": "SHA256", "checksumValue": sha256}] if sha256 else [],
                    }
                )
    return packages


def _identifier(*parts: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(parts))


def _related(one: str, how: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _git(root: Path, *arguments: str) -> str:
    return _git_bytes(root, *arguments).decode()


def _git_bytes(root: Path, *arguments: str) -> bytes:
    command: Sequence[str] = ["git", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if done.returncode:
        raise EnvironmentLacking(
            f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}",
            remedy="release from a git checkout",
        )
    return done.stdout
