"""The images of the last release, by digest: a release records them, and docs and a container name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

import tomlkit
from pydantic import Field, StringConstraints

from provisioning.base.documents import Model, Name, load
from provisioning.base.files import replace_text
from provisioning.base.settings import ROOT

PUBLISHED = ROOT / "lab" / "release" / "published.toml"

Reference = Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[a-z0-9./_-]+@sha256:[0-9a-f]{64}$")]


class Published(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    images: dict[Name, Reference]


def published_images() -> Mapping[str, str]:
    """The images' references, by name; none before the first release."""
    return load(PUBLISHED, Published).images


def record(references: str) -> None:
    """Write where the images were published, a JSON object by name."""
    document = tomlkit.parse(PUBLISHED.read_text(encoding="utf-8"))
    document["images"] = json.loads(references)
    replace_text(PUBLISHED, tomlkit.dumps(document))
