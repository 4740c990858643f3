"""The committed schemas, each read and checked once: checking one takes longer than what it is for."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def validator(path: Path) -> Any:
    # Importing it costs two seconds.
    import jsonschema

    rules = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(rules)
    return jsonschema.Draft202012Validator(rules)
