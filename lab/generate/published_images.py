"""The images of the last release: docs/environments.md names them, and one is the editors' container."""

from __future__ import annotations

import json
import re

from lab.release.published import published_images
from provisioning.base.settings import ROOT

DEVCONTAINER = ROOT / ".devcontainer" / "devcontainer.json"
PAGE = ROOT / "docs" / "environments.md"
FOR_EDITORS = "executorch"
BEGIN, END = "<!-- published: written by `nox -s generate` -->", "<!-- /published -->"


def devcontainer() -> str:
    settings = json.loads(DEVCONTAINER.read_text(encoding="utf-8"))
    if reference := published_images().get(FOR_EDITORS):
        settings["image"] = reference
        settings.pop("initializeCommand", None)
        settings["postCreateCommand"] = "nox -s provision validate"
    return json.dumps(settings, indent=2) + "\n"


def page() -> str:
    published = published_images()
    lines = ["| image | of the last release |", "| --- | --- |"]
    lines += [f"| `{name}` | `{reference}` |" for name, reference in published.items()]
    text = "\n".join(lines) if published else "No release has published them yet: build them."
    content = PAGE.read_text(encoding="utf-8")
    return re.sub(
        f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", lambda _: f"{text}\n", content, flags=re.DOTALL
    )
