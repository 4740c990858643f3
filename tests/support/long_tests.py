"""Tests that take more than five seconds: the ordinary run leaves them out, `.ci/run` and the gate run them.

`@pytest.mark.long("why it takes so long")`; one that belongs to the whole suites too runs with those.
"""

from __future__ import annotations

import pytest

from tests.support import whole

MARKER = "long"
FLAG = "--long"


def add_flag(parser: pytest.Parser) -> None:
    parser.addoption(FLAG, action="store_true", help="run tests of more than five seconds too")


def reasons(item: pytest.Item) -> list[str]:
    mark = item.get_closest_marker(MARKER)
    if mark is None or item.get_closest_marker(whole.MARKER):
        return []
    if len(mark.args) != 1:
        raise pytest.UsageError(f"{item.nodeid}: mark.{MARKER} says why it takes more than five seconds")
    if item.config.getoption(FLAG):
        return []
    return [f"of more than five seconds did not run: nox -s tests -- {FLAG} -m {MARKER}"]
