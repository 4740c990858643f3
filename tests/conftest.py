"""Says which checks need a container engine or a program that is not here, and did not run."""

from __future__ import annotations

import signal

import pytest

from tests.support import engine, needs

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and what tests start would inherit it and not be interruptible.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    engine.leave_out(config, items)
    needs.leave_out(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    engine.tell(config, terminalreporter)
    needs.tell(config, terminalreporter)
