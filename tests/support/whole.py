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


def reasons(item: pytest.Item) -> list[str]:
    if item.config.getoption(FLAG) or item.get_closest_marker(MARKER) is None:
        return []
    return [f"of whole suites did not run: nox -s tests -- {FLAG} -m {MARKER}"]


def mark_properties(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With the flag, property tests draw many examples: they belong to the whole suites."""
    for item in items:
        if config.getoption(FLAG) and is_hypothesis_test(getattr(item, "function", None)):
            item.add_marker(MARKER)
