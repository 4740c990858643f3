"""Read and write a precision file, which `tune` writes: the precision of a model, and the operators that have
another one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError
from provisioning.base.parser import Parser

PRECISION_SUFFIX = ".precision.toml"


class PrecisionFile(Model):
    lane: Literal["executorch", "onnx"]
    """The lane whose names the operators have."""
    precision: str
    nodes: dict[str, tuple[str, ...]] = Field(default={})
    """Maps another precision to the operators that have it; `*` in a name matches anything."""


def read_precision(path: Path, lane: str) -> PrecisionFile:
    file = load(path, PrecisionFile)
    if file.lane != lane:
        fix = "tune the model in this lane: each lane names operators in its own way"
        owner = f"{lane!r}, whose program it is for"
        raise ManifestError(path, "lane", expected=owner, found=repr(file.lane), fix=fix)
    return file


def precision_file_of(path: Path | None, lane: str) -> PrecisionFile | None:
    """Read the precision file that a command line names."""
    return read_precision(Parser.user_folder() / path, lane) if path else None


def precision_text(lane: str, precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    lines = [f"# {comment}", f'lane = "{lane}"', f'precision = "{precision}"', "", "[nodes]"]
    for name, members in nodes.items():
        rows = "".join(f"    {json.dumps(member, ensure_ascii=False)},\n" for member in members)
        lines.append(f'"{name}" = [\n{rows}]')
    return "\n".join(lines) + "\n"


def resolve_precision_file(run: Mapping[str, object], folder: Path, lane: str) -> dict[str, object]:
    """Replace a run's precision file by its content: the content, not the name, decides what is compiled."""
    file = run.get("precision_file")
    if not isinstance(file, str):
        return dict(run)
    path = folder / file
    for field in ("precision", "nodes"):
        if field in run:
            raise ManifestError(
                path, field, expected="it in the precision file alone", found="it beside precision_file",
                fix=f"remove {field}, or precision_file",
            )  # fmt: skip
    return {**run, **read_precision(path, lane).model_dump(mode="json", exclude={"lane"})}
