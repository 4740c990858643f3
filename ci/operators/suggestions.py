"""What to write instead of an operator that stays on the CPU, by manifests/suites/suggestions.toml."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from provisioning.base.answer import Edit
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS

SUGGESTIONS = MANIFESTS / "suites" / "suggestions.toml"


class Suggestion(Model):
    operator: str
    onnx: str = ""
    """The same operator in an ONNX model."""
    code: str = ""
    """A regular expression that the model's source line must match."""
    text: str
    proof: str
    find: str = ""
    """What of the source line to replace, as a regular expression, and by what; both mean the same."""
    write: str = ""


class Suggestions(Model):
    schema_: Literal[1] = Field(alias="schema")
    suggestion: Annotated[tuple[Suggestion, ...], Field(min_length=1)]


@cache
def suggestions() -> tuple[Suggestion, ...]:
    return load(SUGGESTIONS, Suggestions).suggestion


def suggestion_for(operator: str, code: str, source: str = "") -> str:
    """What to write instead; with `source`, FILE:LINE of the code, also the line as it should be."""
    for row in suggestions():
        if operator in (row.operator, row.onnx) and re.search(row.code, code):
            file, _, line = source.rpartition(":")
            if file and row.find and (old := re.search(row.find, code)):
                return f"{Edit(file, int(line), old[0], old.expand(row.write))}: {row.text}"
            return row.text
    return ""
