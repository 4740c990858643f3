"""Says which checks need a container engine and did not run."""

from __future__ import annotations

import pytest

from tests.support import engine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    engine.leave_out(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    engine.tell(config, terminalreporter)
