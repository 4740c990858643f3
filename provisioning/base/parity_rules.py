"""The rules of `buck_parity` in words, for findings and code scanning: manifests/parity_checks.toml."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS


class ParityText(Model):
    summary: str
    message: str
    """Of a finding, with {what}, {where}, {mapping} and words of the rule's own."""
    fix: str
    """The same, for its fix."""


class ParityTexts(Model):
    schema_: Literal[1] = Field(alias="schema")
    rule: dict[str, ParityText]


@cache
def parity_texts() -> dict[str, ParityText]:
    return load(MANIFESTS / "parity_checks.toml", ParityTexts).rule
