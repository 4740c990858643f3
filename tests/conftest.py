"""Count the checks that did not run because a container engine or a program is not here."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import changed, engine, long_tests, needs, shards, small_disk, templates, whole
from tests.support.sources import forget

# With it jsonschema compiles 38 grammars when it is imported, for two seconds in each worker, to check IRIs.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# As our commands do: with the default, parsing our code takes three times as long, and imports a sixth more.
gc.set_threshold(50_000)

# When Python ends it looks for garbage three times more: two seconds in each worker, for nobody.
atexit.register(gc.freeze)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and what tests start would inherit it and not be interruptible.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_folders = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest's own lists the folders of all earlier tests for each new one."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(_folders)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="module")
def one_template() -> Iterator[None]:
    """One process makes the imports for the work of all tests of a file, or of the whole run."""
    from ci.work.processes import sharing_templates

    with templates.shared(), sharing_templates():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    whole.add_flag(parser)
    long_tests.add_flag(parser)
    changed.add_flag(parser)
    shards.add_flags(parser.getgroup("qnn-ci"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker has all files that share what takes long to make: each other would make it too."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return shared_by(config.rootpath / file) or file

    return ByFile(config, log)


SHARED = {
    # Hypothesis too looks for constants in the code of each module that is imported.
    "our code, parsed": ("from tests.support.sources", "from tests.support.rules", "from hypothesis"),
    "the patterns of known failures, compiled": ("from ci.diagnose",),
    "what torch imports when it exports": (
        *("import pytest\nimport torch\n", "import torch  # first", "import Inspector"),
    ),
}


@cache
def shared_by(test: Path) -> str:
    text = test.read_text(encoding="utf-8")
    return next((name for name, lines in SHARED.items() if any(line in text for line in lines)), "")


def pytest_configure(config: pytest.Config) -> None:
    # What is printed depends on the terminal's width, and xdist's workers have another than a single process.
    os.environ["COLUMNS"] = "120"
    # Processes that tests start hold their output back, as a user's do.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # Findings would link to it.
    os.environ.pop("QNN_CI_SITE", None)
    # Each command of a test is a run of its own, not a part of the one that runs the tests.
    os.environ.pop("QNN_CI_RUN", None)
    whole.set_examples(config)
    changed.choose_tests(config)
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        # xdist's workers find it by the variable.
        with ExitStack() as stack:
            stack.enter_context(templates.serving())
            config.add_cleanup(stack.pop_all().close)


LEFT_OUT = pytest.StashKey[Counter[str]]()
"""How many tests are left out, by the reason."""


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes of an archive hold the time when they were packed, and each worker collects by itself."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    whole.mark_properties(config, items)
    reasons = (engine.reasons, needs.reasons, small_disk.reasons, whole.reasons, long_tests.reasons)
    why = {item: next(filter(None, (reason(item) for reason in reasons)), []) for item in items}
    left_out = Counter(reason for reasons in why.values() for reason in reasons)
    config.stash[LEFT_OUT] = left_out
    if config.getoption(changed.FLAG) is not None:
        config.pluginmanager.register(changed.TimeLimit(left_out))
    config.hook.pytest_deselected(items=[item for item in items if why[item]])
    items[:] = [item for item in items if not why[item]]
    # Then pytest puts together what shares a fixture's parameter, and leaves out what -m does not choose.
    result = yield
    shards.take_shard(config, items)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    needing = any(item.get_closest_marker(marker) for marker in (needs.MARKER, engine.MARKER))
    with needs.programs_on_path() if needing else nullcontext():
        return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What collecting left stays for the whole run: the collector need not look at it again each time."""
    if torch := sys.modules.get("torch"):
        # As in our workers. Two threads of tiny models, in each worker of a run, wait for each other.
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With xdist the workers leave tests out, and send what they left out to the process that prints."""
    # pytest then looks for garbage five times: a second each where all trees of our code are there.
    forget()
    left_out: Counter[str] = session.config.stash.get(LEFT_OUT, Counter())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if "left_out" in getattr(node, "workeroutput", {}):
        node.config.stash[LEFT_OUT] = Counter(node.workeroutput["left_out"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out: Counter[str] = config.stash.get(LEFT_OUT, Counter())
    if left_out:
        terminalreporter.section("checks that did not run")
    for reason, count in sorted(left_out.items()):
        terminalreporter.line(f"{count} {'check' if count == 1 else 'checks'} {reason}")
