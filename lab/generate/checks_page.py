"""docs/checks.md: a page of the catalogue for people."""

from __future__ import annotations

import textwrap

from provisioning.validation import CHAPTERS, Rule, catalogue

_HEAD = """\
<!-- Generated from manifests/checks.toml: `nox -s generate` renews it. -->
# What `validate` checks

What does `qnn-ci validate` check? It applies these rules to the store's trees, or to your own SDKs if
`QNN_SDK_ROOT`, `ANDROID_NDK_ROOT` or `HEXAGON_SDK_ROOT` name them. Errors fail it, warnings only with
`--strict`, notes never. A rule that could not run is a warning with the reason, never a pass.

    qnn-ci validate --rule hexagon-arch          # only this rule
    qnn-ci validate --target all                 # every target, each against its own tree
"""


def page() -> str:
    rules = catalogue()
    parts = [_HEAD, "| rule | severity | what holds |\n| --- | --- | --- |"]
    parts[-1] += "".join(
        f"\n| [{r.id}](#{r.id}) | {r.severity.value} | {r.text.summary} |" for r in rules.values()
    )
    for module, title in CHAPTERS.items():
        parts.append(f"## {title}")
        parts += [_section(rule) for rule in rules.values() if rule.module == module]
    return "\n\n".join([parts[0].strip("\n"), *(part.strip("\n") for part in parts[1:])]) + "\n"


def _section(rule: Rule) -> str:
    why = textwrap.fill(" ".join(rule.text.why.split()), 110, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(
        (
            f"### {rule.id}",
            f"{rule.text.summary} ({rule.severity.value}).",
            why,
            textwrap.indent(
                textwrap.fill(rule.text.example, 104, break_long_words=False, break_on_hyphens=False), "    "
            ),
            f"**Fix:** {rule.text.whole_fix.installed}",
        )
    )
