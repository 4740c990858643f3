"""Which tests `nox -s tests -- --changed` runs."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.support.changed import MOST_FILES, TimeLimit, files_to_run

VERBS = {"report": "ci.report.verb"}
TEXTS = {
    "ci/__main__.py": 'VERBS = {"report": Verb("ci.report.verb", "show")}\n',
    "ci/report/verb.py": "def run():\n    from ci.report.page import write\n",
    "ci/report/page.py": "",
    "ci/work/plain.py": "",
    "ci/work/results.py": "from ci.work.plain import read\n",
    "ci/lanes/steps.py": 'WORKER = "ci.lanes.worker"\nEXPORT = "ci.lanes.worker:export"\n',
    "ci/lanes/worker.py": "",
    "ci/rules/__init__.py": 'def load(name):\n    import_module(f"ci.rules.{name}")\n',
    "ci/rules/host.py": "",
    "tests/support/lowering.py": "from ci.lanes import (\n    steps,\n    verb,\n)\n",
    "tests/unit/test_a.py": "import ci.work.plain\nimport ci.work.results\n",
    "tests/unit/test_b.py": "def test():\n    from ci.work import plain\n",
    "tests/unit/test_c.py": "from ci.work.results import Key\nimport ci.workers\n",
    "tests/integration/test_d.py": 'from ci.__main__ import VERBS\nmain(VERBS, ["report", "--check"])\n',
    "tests/unit/test_f.py": "from ci.rules import load\n",
    "tests/unit/test_e.py": "from tests.support.lowering import plan_of\n",
}


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        ("ci/work/plain.py", "bac"),  # what imports least else first, then what imports an importer
        ("ci/work/results.py", "ca"),
        ("ci/report/verb.py", "d"),
        ("ci/report/page.py", "d"),
        ("ci/lanes/worker.py", "e"),
        ("ci/rules/host.py", "f"),
        ("tests/support/lowering.py", "e"),
        ("tests/unit/test_c.py", "c"),
        ("docs/suites.md", ""),
        ("noxfile.py", ""),
    ],
)
def test_a_changed_file_has_the_tests_that_are_nearest_to_it(name: str, letters: str) -> None:
    chosen = files_to_run([name], TEXTS, VERBS)
    assert [test.removesuffix(".py")[-1] for test in chosen] == [*letters]


def test_of_a_file_that_all_tests_import_only_some_are_collected() -> None:
    texts = {f"tests/unit/test_{number:02}.py": "import ci.errors\n" for number in range(50)}
    chosen = files_to_run(["ci/errors.py"], {"ci/errors.py": "", **texts}, {})
    assert chosen == sorted(texts)[:MOST_FILES]


def test_no_test_begins_when_the_time_is_over_and_each_is_counted() -> None:
    left_out = Counter[str]()
    limit = TimeLimit(left_out, time.monotonic() + 60)
    assert limit.pytest_runtest_protocol() is None and not left_out
    limit = TimeLimit(left_out, time.monotonic())
    assert limit.pytest_runtest_protocol() and limit.pytest_runtest_protocol()
    assert [*left_out.values()] == [2]
