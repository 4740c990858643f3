"""The catalogue as a whole: choosing, ignoring, and the page that is generated from it."""

from __future__ import annotations

import pytest

from provisioning.base.errors import UsageError
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import ROOT
from provisioning.validation import Ignore, Rule, catalogue, chosen, rule, without_ignored
from provisioning.validation.document import catalogue_markdown

RULES = list(catalogue().values())


def finding(rule_: str, subject: str) -> Finding:
    return Finding(rule_, Severity.ERROR, subject, "is wrong", "mend it")


FOUND = [
    finding("elf-machine", "lib/a/libX.so"),
    finding("elf-machine", "lib/b/libX.so"),
    finding("host-os", "h"),
]


def test_the_page_of_the_catalogue_is_fresh() -> None:
    assert (ROOT / "docs" / "checks.md").read_text(encoding="utf-8") == catalogue_markdown()


@pytest.mark.parametrize("rule_", RULES, ids=lambda rule_: rule_.id)
def test_every_rule_has_a_section_with_what_why_example_and_mend(rule_: Rule) -> None:
    section = catalogue_markdown().split(f"### {rule_.id}\n")[1].split("\n### ")[0]
    flat = " ".join(section.split())
    assert [
        " ".join(text.split()) in flat for text in (rule_.summary, rule_.why, rule_.example, rule_.fix)
    ] == [True] * 4


@pytest.mark.parametrize("rule_", RULES, ids=lambda rule_: rule_.id)
def test_every_rule_says_all_it_should(rule_: Rule) -> None:
    assert all(text.strip() for text in (rule_.summary, rule_.why, rule_.example, rule_.fix))
    assert ": " in rule_.example, "an example is a subject and what is said of it"


def test_an_id_is_given_once() -> None:
    register = rule("elf-machine", Severity.NOTE, summary="", why="", example="", fix="")
    with pytest.raises(ValueError, match="two rules are called elf-machine"):
        register(lambda context: iter(()))


def test_without_names_every_rule_is_chosen() -> None:
    assert chosen([]) == RULES


def test_named_rules_are_chosen_once_and_in_order() -> None:
    assert [r.id for r in chosen(["host-os", "elf-machine", "host-os"])] == ["host-os", "elf-machine"]


def test_a_name_that_is_nearly_one_is_answered_with_it() -> None:
    with pytest.raises(UsageError, match="no rule 'elf-machin'") as caught:
        chosen(["elf-machin"])
    assert caught.value.remedy == "did you mean --rule elf-machine?"


def test_a_name_that_is_near_none_is_answered_with_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        chosen(["qqq"])
    assert caught.value.remedy == "`nox -s validate -- --list` names them all"


@pytest.mark.parametrize(
    ("ignore", "left"),
    [
        ("elf-machine", ["h"]),
        ("elf-machine:lib/a/*", ["lib/b/libX.so", "h"]),
        ("elf-machine:*/libX.so", ["h"]),
        ("host-os:h", ["lib/a/libX.so", "lib/b/libX.so"]),
    ],
)
def test_an_ignore_takes_away_what_it_fits(ignore: str, left: list[str]) -> None:
    kept, ignored = without_ignored(FOUND, [Ignore.parse(ignore)])
    assert ([f.subject for f in kept], len(ignored)) == (left, len(FOUND) - len(left))


@pytest.mark.parametrize("ignore", ["elf-machine:lib/c/*", "elf-readable"])
def test_an_ignore_that_fits_nothing_is_refused(ignore: str) -> None:
    with pytest.raises(UsageError, match="matches no finding") as caught:
        without_ignored(FOUND, [Ignore.parse("host-os"), Ignore.parse(ignore)])
    assert f"--ignore {ignore}" in caught.value.message


def test_two_ignores_that_fit_one_finding_are_both_used() -> None:
    kept, _ = without_ignored(FOUND[:1], [Ignore.parse("elf-machine"), Ignore.parse("elf-machine:lib/a/*")])
    assert kept == []


def test_an_ignore_of_an_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="no rule 'elf-machines'"):
        Ignore.parse("elf-machines:lib/*")
