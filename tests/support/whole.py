"""Whole suites, of which the ordinary run has samples: tests marked `whole` run with `--whole` only.

Property tests draw a few examples, the same each time; with `--whole` they belong to the whole suites and
draw many new ones.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis.internal.detection import is_hypothesis_test

MARKER = "whole"
FLAG = "--whole"
LEFT_OUT = pytest.StashKey[int]()


def add_flag(parser: pytest.Parser) -> None:
    parser.addoption(FLAG, action="store_true", help="run whole suites too, of which the others are samples")


def set_examples(config: pytest.Config) -> None:
    everything = config.getoption(FLAG)
    hypothesis.settings.register_profile(
        "qnn-ci",
        # However busy the machine is.
        deadline=None,
        database=None,
        max_examples=300 if everything else 15,
        derandomize=not everything,
    )
    hypothesis.settings.load_profile("qnn-ci")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(FLAG):
        for item in items:
            if is_hypothesis_test(getattr(item, "function", None)):
                item.add_marker(MARKER)
    ours = [item for item in items if item.get_closest_marker(MARKER)]
    if ours and not config.getoption(FLAG):
        items[:] = [item for item in items if item not in ours]
        config.hook.pytest_deselected(items=ours)
        config.stash[LEFT_OUT] = len(ours)


def tell(config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        reporter.section("whole suites")
        reporter.line(f"{count} checks of whole suites did not run: nox -s tests -- {FLAG} -m {MARKER}")
