"""Facts of a cached result with the lines of today's code: a key has no lines, so they may have moved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Lines = Mapping[str, tuple[str, str]]
"""By node FILE:LINE and the code that stands there."""


def relocated(facts: Mapping[str, Any], then: Lines, now: Lines) -> Mapping[str, Any] | None:
    """None where two nodes of one line are on different lines now: a text does not say which it means."""
    moved: dict[str, str] = {}
    for node, (place, code) in then.items():
        place_now, code_now = now.get(node, (place, code))
        # A line's code stands in backticks in a text, or alone.
        pairs = ((place, place_now), (f"`{code}`", f"`{code_now}`"))
        if any(old and moved.setdefault(old, new) != new for old, new in pairs):
            return None
    changed = {old: new for old, new in moved.items() if old != new}
    if not changed:
        return facts
    names = "|".join(map(re.escape, sorted(changed, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w/.])(?:{names})(?!\w)")

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            alone = changed.get(f"`{value}`")
            return alone.strip("`") if alone else pattern.sub(lambda match: changed[match[0]], value)
        if isinstance(value, dict):
            return {name: replaced(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [*map(replaced, value)]
        return value

    texts = {name: replaced(value) for name, value in facts.items() if name != "lines"}
    return {**texts, "lines": dict(now)}
