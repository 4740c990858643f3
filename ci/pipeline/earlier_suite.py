"""Suites as earlier releases had them (`schema = 1`, one lane a file), and what was accepted of them: what
makes them those of now.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

from pydantic import Field

from ci.pipeline.precision import scheme_named, written_name
from provisioning.base.accepted import Values
from provisioning.base.documents import Model, parse
from provisioning.base.errors import ManifestError, ToolkitError

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One key of a table of the document gets another name or value."""

    table: Path
    name: str
    value: Any
    instead_of: str = ""
    """The key that it takes the place of; a new key comes first."""


def is_earlier(document: Mapping[str, Any]) -> bool:
    runs = [run for _, case in _tables(document.get("case")) for _, run in _tables(case.get("run"))]
    return document.get("schema") == 1 and not any("lane" in run for run in runs)


def converted(document: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for edit in edits_of(document):
        table: Any = changed
        for part in edit.table:
            table = table[part]
        new = {edit.name: edit.value}
        items = dict(table)
        table.clear()
        table.update({} if edit.instead_of else new)
        for key, value in items.items():
            table.update(new if key == edit.instead_of else {key: value})
    return changed


def edits_of(document: Mapping[str, Any]) -> Iterator[Edit]:
    """What is wrong with the document stays as it is: who reads the result finds it."""
    lane = lane_of(document)
    yield Edit((), "schema", 2, "schema")
    for name, case in _tables(document.get("case")):
        if lane == "onnx" and "calibrate" in case and "samples" not in case:
            yield Edit(("case", name), "samples", case["calibrate"], "calibrate")
        for number, run in _tables(case.get("run")):
            yield from _edits_of_run(lane, ("case", name, "run", number), run)


def lane_of(document: Mapping[str, Any]) -> str:
    """By what each run or case of its suites had, and those of no other lane."""
    cases = [case for _, case in _tables(document.get("case"))]
    runs = [run for case in cases for _, run in _tables(case.get("run"))]
    if any("scheme" in run for run in runs):
        return "executorch"
    if any("perplexity" in case for case in cases):
        return "llm"
    onnx = any("precision" in run for run in runs) or any("model" in case for case in cases)
    return "onnx" if onnx else "executorch"


def _edits_of_run(lane: str, place: Path, run: Mapping[str, Any]) -> Iterator[Edit]:
    if lane != "executorch":
        if (value := written_name(run.get("precision"))) != run.get("precision"):
            yield Edit(place, "precision", value, "precision")
    else:
        for number, module in _tables(run.get("modules")):
            if "scheme" in module and "precision" not in module:
                inside = (*place, "modules", number)
                yield Edit(inside, "precision", _scheme(module["scheme"]), "scheme")
        if "scheme" in run and "precision" not in run:
            yield Edit(place, "precision", _scheme(run["scheme"]), "scheme")
    yield Edit(place, "lane", lane)


def _tables(value: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return ((key, item) for key, item in items if isinstance(item, Mapping))


def _scheme(value: Any) -> Any:
    try:
        return scheme_named(value) if isinstance(value, str) else value
    except ToolkitError:
        return value


class _Accepted(Model):
    schema_: Literal[1, 2] = Field(alias="schema")
    build_id: str = ""
    """Of all programs, in older files."""
    programs: dict[str, dict[str, Any]]
    """By name; with schema 2 by lane and name."""


def earlier_accepted(suite: FilePath, profile: str) -> FilePath:
    """Where earlier releases put what was accepted. While it is there, it is what is read."""
    return suite.with_name(f"{suite.stem}.baseline-{profile}.json")


def earlier_subjects(path: FilePath, lane: str = "") -> dict[str, Values]:
    """Its values; `lane` is that of a file which names none."""
    try:
        read = parse(json.loads(path.read_text(encoding="utf-8")), _Accepted, path)
    except ValueError as error:
        raise ManifestError(path, "(syntax)", expected="JSON", found=str(error)) from error
    begins = f"{lane}/" if read.schema_ == 1 else ""
    subjects: dict[str, Values] = {}
    for name, values in read.programs.items():
        accuracy = values.pop("accuracy", {})
        subjects[f"{begins}{name}"] = {"build_id": read.build_id, **values, **accuracy}
    return subjects
