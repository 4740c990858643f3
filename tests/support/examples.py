"""The YAML examples of our pages, as someone would fill them in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def example(page: Path, begins: str) -> str:
    """The example of a page that begins so."""
    text = page.read_text(encoding="utf-8")
    (found,) = [e for e in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if e.startswith(begins)]
    return filled(found)


def filled(text: str) -> str:
    values: Mapping[str, str] = {"OWNER/": "somebody/", "@COMMIT": f"@{'7' * 40}", "# VERSION": "# v0.1.0"}
    return re.sub("|".join(values), lambda match: values[match[0]], text)
