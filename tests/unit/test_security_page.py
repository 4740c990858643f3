"""Each promise of docs/environments.md names the tests that hold it."""

from __future__ import annotations

import re

from provisioning.base.settings import ROOT


def test_every_promise_names_tests_that_are_there() -> None:
    page = ROOT / "docs" / "environments.md"
    _, _, section = page.read_text(encoding="utf-8").partition("\n## Security\n")
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    promises = [row for row in rows if not row.startswith("| ---")]
    assert promises
    for row in promises:
        tests = re.findall(r"\((\.\./tests/[^)]+)\)", row.rsplit("|", 2)[1])
        assert tests, row
        for test in tests:
            assert (page.parent / test).is_file(), test
