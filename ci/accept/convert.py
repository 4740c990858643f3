"""Rewrite a suite of an earlier release, and what was accepted of it, in the form of now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import SingleKey

from ci.lanes.executorch.suite import FORM as EXECUTORCH
from ci.lanes.llm.suite import FORM as LLM
from ci.lanes.onnx.suite import FORM as ONNX
from ci.pipeline.baseline import recorded_of
from ci.pipeline.earlier_suite import (
    Edit,
    converted,
    earlier_accepted,
    earlier_subjects,
    edits_of,
    is_earlier,
)
from ci.pipeline.suite_file import SuiteFile, accepted_path, parse_suite
from provisioning.base import toml
from provisioning.base.accepted import Accepted, Values, accept
from provisioning.base.documents import read
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.manifest import profile_names

FORMS = (EXECUTORCH, ONNX, LLM)
SCHEMA_LINE = re.compile(r"^(#:schema .*/)(?:onnx|llm)_(suite\.json)", re.MULTILINE)


def convert(suite: Path) -> list[Path]:
    """Rewrite the files; returns those that changed. Nothing is written if one of them cannot be."""
    document, text = read(suite), ""
    if is_earlier(document):
        text = _converted_text(suite, document)
        document = toml.loads(text)
    file = parse_suite(document, suite, *FORMS)
    changes = {
        profile: _converted_results(old, file)
        for profile in profile_names()
        if (old := earlier_accepted(suite, profile)).is_file()
    }
    changed = [accepted_path(suite, profile) for profile in changes]
    for profile, subjects in changes.items():
        accept(accepted_path(suite, profile), partial(Accepted.updated, changes=subjects))
    if text:
        replace_text(suite, text)
        changed.append(suite)
    # Last: while they are there, the command can be repeated.
    for profile in changes:
        earlier_accepted(suite, profile).unlink()
    return changed


def _converted_text(suite: Path, document: Mapping[str, Any]) -> str:
    text = SCHEMA_LINE.sub(r"\1\2", suite.read_text(encoding="utf-8"))
    changed: Any = tomlkit.parse(text)
    for edit in list(edits_of(document)):
        _apply(changed, edit)
    text = tomlkit.dumps(changed)
    if toml.loads(text) != converted(document):
        raise UsageError(
            f"{suite}: its layout is one that cannot be rewritten",
            fix="write tables as [case.NAME] and [[case.NAME.run]], and repeat the command",
        )
    return text


def _apply(document: Any, edit: Edit) -> None:
    """Change one key where it stands, so that comments and order stay."""
    table = document
    for part in edit.table:
        table = table[part]
    body = table.body if hasattr(table, "body") else table.value.body
    key, value = SingleKey(edit.name, sep=" = "), tomlkit.item(edit.value)
    for number, (old_key, old) in enumerate(body):
        if old_key and old_key.key == edit.instead_of:
            value.trivia.indent, value.trivia.trail = old.trivia.indent, old.trivia.trail
            value.trivia.comment_ws, value.trivia.comment = old.trivia.comment_ws, old.trivia.comment
            body[number] = (key, value)
            return
    indents = [item.trivia.indent for old_key, item in body if old_key]
    value.trivia.indent = indents[0] if indents else ""
    body.insert(0, (key, value))


def _converted_results(path: Path, file: SuiteFile) -> dict[str, Values]:
    names = _new_names(file)
    renamed: dict[str, Values] = {}
    earlier = Accepted(path, earlier_subjects(path))
    for subject, values in earlier.subjects.items():
        recorded_of(earlier, subject)
        lane, _, name = subject.partition("/")
        run, _, soc = name.rpartition("/")
        # A run that the suite does not have any more is left to the lane, if there is one alone.
        runs = names.get(run) or [f"{case}/{run}" for case in file.cases]
        if not lane and len(runs) > 1:
            raise UsageError(
                f"{path}: {name} is of {' or of '.join(runs)}, and the file does not say of which",
                fix=f"remove {name} from {path}, repeat the command, then --accept what is measured",
            )
        renamed[subject if lane else f"{runs[0]}/{soc}"] = values
    return renamed


def _new_names(file: SuiteFile) -> dict[str, list[str]]:
    """The names of runs with their lanes, by the names of earlier releases."""
    names: dict[str, list[str]] = {}
    for lane, cases in file.cases.items():
        for name, case in cases.items():
            for run in case.runs:
                earlier = f"{name}/{run.label or run.earlier_kind}"
                names.setdefault(earlier, []).append(f"{lane}/{name}/{run.name}")
    return names
