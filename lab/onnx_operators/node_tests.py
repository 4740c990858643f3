"""The operators of ONNX's opset that are measured, by their authors' own node tests: which test, and why not.

They are chosen from the installed onnx; this module needs no onnx.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from provisioning.base.documents import Model, parse
from provisioning.base.settings import MANIFESTS

SUITE = MANIFESTS / "suites" / "onnx_operators.toml"
CHOSEN = MANIFESTS / "onnx_tests.json"


class Chosen(Model):
    """The plain case of an operator."""

    test: str
    module: str
    """The module of onnx.backend.test.case.node that has the test."""
    opset: int
    """The first one from the lane's own on in which ONNX Runtime's CPU gives what the test expects."""
    constants: tuple[str, ...] = ()
    """Inputs of the test that are weights or settings in a real model."""


class NodeTests(Model):
    """manifests/onnx_tests.json."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    onnx: str
    """The packages' versions, and the opset of this onnx."""
    onnxruntime: str
    opset: int
    operators: Mapping[str, Chosen]
    left_out: Mapping[str, str]
    """Operators that are not measured, each with the reason."""

    def to_json(self) -> str:
        document = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return json.dumps(document, indent=1, sort_keys=True) + "\n"


def node_tests() -> NodeTests:
    return parse(json.loads(CHOSEN.read_text(encoding="utf-8")), NodeTests, CHOSEN)
