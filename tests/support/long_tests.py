"""Tests that take more than five seconds: the ordinary run leaves them out, `.ci/run` and the gate run them.

`@pytest.mark.long("why it takes so long")`; one that belongs to the whole suites too runs with those.
QNN_CI_TEST_LONG=1 says the same as the flag.
"""

from __future__ import annotations

import os

import pytest

from tests.support import whole

MARKER = "long"
FLAG = "--long"
SWITCH = "QNN_CI_TEST_LONG"


def add_flag(parser: pytest.Parser) -> None:
    # xdist's workers read the variable, too: they know the typed flags alone.
    default = bool(os.environ.get(SWITCH))
    help_text = "run tests of more than five seconds too"
    parser.addoption(FLAG, action="store_true", default=default, help=help_text)


def reasons(item: pytest.Item) -> list[str]:
    mark = item.get_closest_marker(MARKER)
    if mark is None or item.get_closest_marker(whole.MARKER):
        return []
    if len(mark.args) != 1:
        raise pytest.UsageError(f"{item.nodeid}: mark.{MARKER} says why it takes more than five seconds")
    if item.config.getoption(FLAG):
        return []
    return [f"of more than five seconds did not run: nox -s tests -- {FLAG} -m {MARKER}"]
