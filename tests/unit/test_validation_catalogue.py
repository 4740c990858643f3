"""The catalogue as a whole: choosing, ignoring, and the page that is generated from it."""

from __future__ import annotations

import pytest

from ci.builds.loadable import REMEDIES
from provisioning.base.errors import UsageError
from provisioning.base.findings import Finding, Severity
from provisioning.loadable import Wrong
from provisioning.validation import Ignore, catalogue, elf, without_ignored
from provisioning.validation.tables import rule_texts

RULES = list(catalogue().values())


def test_all_that_can_be_wrong_with_a_library_has_a_rule_and_a_remedy_of_builds() -> None:
    assert set(elf.RULES) == set(Wrong)
    assert set(elf.RULES.values()) <= set(catalogue())
    assert {wrong.value for wrong in Wrong} <= set(REMEDIES)


def finding(rule_: str, subject: str) -> Finding:
    return Finding(rule_, Severity.ERROR, subject, "is wrong", "mend it")


FOUND = [
    finding("elf-machine", "lib/a/libX.so"),
    finding("elf-machine", "lib/b/libX.so"),
    finding("host-os", "h"),
]


def test_every_text_has_its_rule_and_says_all_it_should() -> None:
    assert set(rule_texts()) == set(catalogue())
    for name, text in rule_texts().items():
        assert all(each.strip() for each in (text.summary, text.why, text.example, text.fix)), name


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
