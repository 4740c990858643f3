"""The YAML examples of our pages, as someone would fill them in."""

from __future__ import annotations

import re
from pathlib import Path

from lab.lint import FILLED_IN


def example(page: Path, begins: str) -> str:
    """The example of a page that begins so."""
    text = page.read_text(encoding="utf-8")
    (found,) = [e for e in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if e.startswith(begins)]
    return filled(found)


def filled(text: str) -> str:
    return re.sub("|".join(FILLED_IN), lambda match: FILLED_IN[match[0]], text)
