"""Which programs tests find, where a reader's PATH has fewer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.scripts import script


def test_a_program_that_a_reader_lacks_is_there_for_tests_that_need_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reader").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "reader"))
    monkeypatch.delenv(needs.THEIR_PATH, raising=False)
    assert needs.lacking(("adb",)) == ["adb"]
    program = script(tmp_path / "bin/adb", "exit 0")
    monkeypatch.setenv(needs.THEIR_PATH, str(program.parent))
    assert needs.lacking(("adb",)) == [] and shutil.which("adb") is None
    with needs.programs_on_path():
        assert shutil.which("adb") == str(program)
