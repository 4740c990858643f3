"""Whole suites, of which the ordinary run has samples: tests marked `whole` run with `--whole` only."""

from __future__ import annotations

import pytest

MARKER = "whole"
FLAG = "--whole"
LEFT_OUT = pytest.StashKey[int]()


def add_flag(parser: pytest.Parser) -> None:
    parser.addoption(FLAG, action="store_true", help="run whole suites too, of which the others are samples")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.get_closest_marker(MARKER)]
    if ours and not config.getoption(FLAG):
        items[:] = [item for item in items if item not in ours]
        config.hook.pytest_deselected(items=ours)
        config.stash[LEFT_OUT] = len(ours)


def tell(config: pytest.Config, reporter: pytest.TerminalReporter) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        reporter.section("whole suites")
        reporter.line(f"{count} checks of whole suites did not run: nox -s tests -- {FLAG} -m {MARKER}")
