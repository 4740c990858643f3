"""A precision file: the precision of a model, and the operators that have another one. `tune` writes it;
suites and commands take it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from ci.suite.one_model import OneModel
from provisioning.base.command_line import Parser
from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError

SUFFIX = ".precision.toml"


class PrecisionFile(Model):
    lane: Literal["executorch", "onnx"]
    """Whose names the operators have."""
    precision: str
    nodes: dict[str, tuple[str, ...]] = Field(default={})
    """By precision, the operators that have another one; `*` in a name matches anything."""


def read_precision(path: Path, lane: str) -> PrecisionFile:
    found = load(path, PrecisionFile)
    if found.lane != lane:
        fix = "tune the model in this lane: each lane names operators in its own way"
        whose = f"{lane!r}, whose program it is for"
        raise ManifestError(path, "lane", expected=whose, found=repr(found.lane), fix=fix)
    return found


def precision_file_of(model: OneModel, lane: str) -> PrecisionFile | None:
    return read_precision(Parser.user_folder() / model.precision_file, lane) if model.precision_file else None


def written(lane: str, precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    lines = [f"# {comment}", f'lane = "{lane}"', f'precision = "{precision}"', "", "[nodes]"]
    for name, members in nodes.items():
        listed = "".join(f"    {json.dumps(member, ensure_ascii=False)},\n" for member in members)
        lines.append(f'"{name}" = [\n{listed}]')
    return "\n".join(lines) + "\n"


def with_file(run: Mapping[str, object], folder: Path, lane: str) -> dict[str, object]:
    """A run of a suite with what its precision file says in it: the content, and not the name, decides what
    is compiled."""
    named = run.get("precision_file")
    if not isinstance(named, str):
        return dict(run)
    path = folder / named
    for field in ("precision", "nodes"):
        if field in run:
            raise ManifestError(
                path, field, expected="it in the precision file alone", found="it beside precision_file",
                fix=f"remove {field}, or precision_file",
            )  # fmt: skip
    return {**run, **read_precision(path, lane).model_dump(mode="json", exclude={"lane"})}
