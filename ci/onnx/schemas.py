"""JSON Schemas of this lane's manifests (`nox -s generate`)."""

from __future__ import annotations

from ci.onnx.options import OptionTable
from ci.onnx.suite import Suite
from provisioning.verbs.generate import _schema


def suite_schema() -> str:
    return _schema(Suite, "A suite for ONNX Runtime: models, precisions, chips, thresholds", manifest=True)


def options_schema() -> str:
    return _schema(OptionTable, "What ONNX Runtime's QNN provider, its sessions and runs take", manifest=True)
