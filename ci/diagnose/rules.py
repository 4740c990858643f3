"""The rules that findings have: what each means, what to type, and its page."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from string import Formatter
from urllib.parse import quote

from provisioning.base.commands import Fix, fix_of
from provisioning.base.settings import MANIFESTS

TABLE = MANIFESTS / "rules.toml"
OTHERS = {"checks.toml": "docs/checks.md", "parity_checks.toml": "docs/building.md"}
"""Tables that have more than this for each rule and check it themselves; by file the page of their rules."""

RULES = "rules.html"
"""The page, in the site that the user named, with an anchor for each rule of a finding, by its name."""
ERRORS = "errors.html"
"""The page of failures that `diagnose` knows, likewise."""
FAULTS = "findings.html"
"""The page of known faults, likewise."""


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    summary: str
    fix: Fix
    page: str


def explained(name: str) -> Rule | None:
    """The rule with that name, else the row that stands for it."""
    known = rules()
    if name in known:
        return known[name]
    rows = [row for row in known if "*" in row and fnmatchcase(name, row)]
    # `*-timeout` says more of lowering-timeout than `lowering-*` does.
    return known[min(rows, key=lambda row: (not row.startswith("*"), -len(row)))] if rows else None


@cache
def rules() -> dict[str, Rule]:
    """The rules of all tables. A name in two of them is an error of their test."""
    from pydantic import Field

    from provisioning.base import toml
    from provisioning.base.documents import Model, load

    class Row(Model):
        summary: str = Field(min_length=1)
        fix: str = Field(min_length=1)
        commands: tuple[tuple[str, ...], ...] = ()
        page: str = Field(pattern=r"^[\w./-]+\.md$")

    class Table(Model):
        schema_: int = Field(alias="schema")
        rule: dict[str, Row]

    found = {
        name: Rule(name, row.summary, Fix(row.fix, *row.commands), row.page)
        for name, row in load(TABLE, Table).rule.items()
    }
    for file, page in OTHERS.items():
        for name, row in toml.loads((MANIFESTS / file).read_text(encoding="utf-8"))["rule"].items():
            fix = fix_of(row)
            # What a finding fills in is a word in capitals where the rule itself is explained.
            names = {name: name.upper() for _, name, _, _ in Formatter().parse(row["fix"]) if name}
            found[name] = Rule(name, row["summary"], Fix(fix.format(**names)) if names else fix, page)
    return found


def page_of(name: str, page: str = RULES) -> str:
    """Where the site that the user named explains a rule or a failure; empty if there is none."""
    site = os.environ.get("QNN_CI_SITE", "").rstrip("/")
    known = re.fullmatch(r"https?://[^\s<>\"'()\[\]]+", site) is not None
    return f"{site}/{page}#{quote(name)}" if known else ""
