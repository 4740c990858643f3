"""The gate runs stages together. This module has only the names that `--help` needs, so that it loads none of
the packages that check a manifest."""

from __future__ import annotations

from ci.lanes.registry import lanes_by_gate_stage
from provisioning.base import toml
from provisioning.base.settings import MANIFESTS

GATE_TABLE = MANIFESTS / "gate.toml"


GATE_ENVIRONMENT = "executorch"
"""The locked Python that the gate runs in."""


def stage_names() -> list[str]:
    rows = toml.loads(GATE_TABLE.read_text(encoding="utf-8"))["stage"]
    return [*dict.fromkeys([*(stage["name"] for stage in rows), *lanes_by_gate_stage()])]
