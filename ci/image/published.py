"""The images of the last release, in images.toml."""

from __future__ import annotations

from collections.abc import Mapping

from ci.image.image_plan import edited


def record(references: Mapping[str, str]) -> None:
    with edited() as document:
        document["published"] = dict(references)
