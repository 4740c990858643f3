"""The names of the gate's stages, for `--help`: read without the packages that check a manifest."""

from __future__ import annotations

import sys

from provisioning.base.settings import MANIFESTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GATE_TABLE = MANIFESTS / "gate.toml"


def stage_names() -> list[str]:
    """In their order."""
    return [stage["name"] for stage in tomllib.loads(GATE_TABLE.read_text(encoding="utf-8"))["stage"]]
