"""Count the checks that did not run because a container engine or a program is not here."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

import pytest

from tests.support import engine, needs, whole

# With it jsonschema compiles 38 grammars when it is imported, for two seconds in each worker, to check IRIs.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and what tests start would inherit it and not be interruptible.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    whole.add_flag(parser)


def pytest_configure(config: pytest.Config) -> None:
    # What is printed depends on the terminal's width, and xdist's workers have another than a single process.
    os.environ["COLUMNS"] = "120"
    # Processes that tests start hold their output back, as a user's do.
    os.environ.pop("PYTHONUNBUFFERED", None)
    whole.set_examples(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    engine.leave_out(config, items)
    needs.leave_out(config, items)
    whole.leave_out(config, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What collecting left stays for the whole run: the collector need not look at it again each time."""
    gc.collect()
    gc.freeze()


LEFT_OUT: dict[str, pytest.StashKey[Any]] = {
    "engine": engine.LEFT_OUT,
    "needs": needs.LEFT_OUT,
    "whole": whole.LEFT_OUT,
}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With xdist the workers leave tests out, and send what they left out to the process that prints."""
    for name, key in LEFT_OUT.items():
        if hasattr(session.config, "workeroutput") and key in session.config.stash:
            session.config.workeroutput[name] = session.config.stash[key]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, key in LEFT_OUT.items():
        if name in getattr(node, "workeroutput", {}):
            node.config.stash[key] = node.workeroutput[name]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    engine.tell(config, terminalreporter)
    needs.tell(config, terminalreporter)
    whole.tell(config, terminalreporter)
