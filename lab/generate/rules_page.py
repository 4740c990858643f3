"""docs/rules.md: every rule that a finding can have, from the tables of rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ci.diagnose.rules import Rule, rules

HEAD = """\
<!-- Generated from manifests/rules.toml, checks.toml and parity_checks.toml: `nox -s generate` renews it. -->
# Rules

What does the rule of a finding mean, and what do you do? `qnn-ci diagnose RULE` prints the same. A name with
`*` covers all rules of that form without a row of their own. In a fix, words in capitals are yours to
replace.
"""


def page() -> str:
    return "\n".join([HEAD, *_chapters()])


def _chapters() -> Iterator[str]:
    ordered = sorted(rules().values(), key=lambda rule: (rule.page, rule.id))
    for where, chapter in groupby(ordered, key=lambda rule: rule.page):
        yield f"## [{Path(where).name}]({os.path.relpath(where, 'docs')})\n"
        yield "| rule | what is wrong | fix |\n| --- | --- | --- |"
        yield from map(_row, chapter)
        yield ""


def _row(rule: Rule) -> str:
    cells = (f'<a id="{rule.id}"></a>`{rule.id}`', rule.summary, rule.fix.installed)
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells) + " |"
