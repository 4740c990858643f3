"""Which tests `nox -s tests -- --changed` runs."""

from __future__ import annotations

import pytest

from tests.support.changed import files_to_run

TEXTS = {
    "tests/unit/test_a.py": "from ci.work.plain import read\n",
    "tests/unit/test_b.py": "def test():\n    from ci.work import plain\n",
    "tests/unit/test_c.py": "from ci.work.results import Key\nimport ci.workers\n",
    "tests/unit/test_d.py": "from ci.report import page\nfrom tests.support.typed import typed\n",
}


@pytest.mark.parametrize(
    ("changed", "letters"),
    [
        ("ci/work/plain.py", "ab"),
        ("ci/work/digests.py", "abc"),  # no test imports it: those of its folder
        ("ci/report/__init__.py", "d"),
        ("tests/unit/test_c.py", "c"),
        ("docs/suites.md", ""),
        ("noxfile.py", ""),
        ("tests/support/rules.py", ""),
        ("tests/conftest.py", ""),
    ],
)
def test_a_changed_file_has_the_tests_that_import_it(changed: str, letters: str) -> None:
    assert files_to_run([changed], TEXTS) == [f"tests/unit/test_{letter}.py" for letter in letters]
