"""Programs for lint that no package index has: archives, pinned by hash in manifests/lint_tools.toml."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from provisioning.base.documents import Model, load
from provisioning.base.errors import CheckFailed
from provisioning.download import fetch, file_name, mirrored
from provisioning.sources import Https, Sha256

REQUIRED = "QNN_CI_LINT_TOOLS"


class DownloadedTool(Model):
    url: Https
    sha256: Sha256


class LintTools(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    tools: dict[str, DownloadedTool]


def required(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a program that is not on PATH is downloaded, and an error if it cannot be."""
    return environ.get(REQUIRED) == "required"


def program(name: str, store: Path, manifest: Path) -> Path:
    """The program that the manifest pins, downloaded and verified once."""
    tool = load(manifest, LintTools).tools[name]
    archive = store / "downloads" / tool.sha256 / file_name(tool.url)
    archive.parent.mkdir(parents=True, exist_ok=True)
    fetch(mirrored(tool.url), archive, sha256=tool.sha256, size=None)
    target = archive.with_name(name)
    with tarfile.open(archive) as members:
        stream = members.extractfile(name)
        if stream is None:
            raise CheckFailed(f"{archive} has no program {name}")
        with stream, target.open("wb") as file:
            shutil.copyfileobj(stream, file)
    target.chmod(0o755)
    return target
