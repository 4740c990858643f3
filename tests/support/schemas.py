"""The committed schemas, each read and checked once: checking one takes longer than what it is for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from provisioning.base.answer import split_json
from provisioning.base.settings import MANIFESTS

ANSWER = MANIFESTS / "schema" / "answer.json"


@cache
def validator(path: Path) -> Any:
    # Importing it costs two seconds.
    import jsonschema

    rules = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(rules)
    return jsonschema.Draft202012Validator(rules)


def check_answer(text: str) -> dict[str, Any]:
    """What a verb wrote for --json, of whose facts the schema has each."""
    answer: dict[str, Any] = json.loads(text)
    validator(ANSWER).validate(answer)
    assert not answer.keys() - validator(ANSWER).schema["properties"].keys(), "a fact that no schema has"
    return answer


def check_answer_to(words: Sequence[str], folder: Path, output: str) -> None:
    """The answer to a command that was typed in this folder, if it was one for --json, and got so far."""
    rest, place = split_json(words)
    if place is None or rest == list(words):
        return
    file = folder / place
    if text := (file.read_text(encoding="utf-8") if place and file.is_file() else "" if place else output):
        check_answer(text)
