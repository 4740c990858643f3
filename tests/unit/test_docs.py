"""A link in our pages leads somewhere: to a file of the repository, and to a heading of that page."""

from __future__ import annotations

import re
from pathlib import Path

from provisioning.base.settings import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
                dead.append(f"{page.name}: {link}")
    assert not dead, "\n".join(dead)
