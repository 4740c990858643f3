"""The gate runs stages together. Their names are here, for `--help`: that needs none of the packages that
check a manifest."""

from __future__ import annotations

from provisioning.base import toml
from provisioning.base.settings import MANIFESTS

GATE_TABLE = MANIFESTS / "gate.toml"


def stage_names() -> list[str]:
    return [stage["name"] for stage in toml.loads(GATE_TABLE.read_text(encoding="utf-8"))["stage"]]
